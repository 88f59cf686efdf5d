"""`trace`: who initialised CUDA, how, through which imports; and every fork."""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
from typing import Any

from .. import _config, _deep, _hooks, _source
from . import blocks, program, story, watched
from .history import History, Step, read
from .watched import Outcome


class Trace:
    """Run a program in mode record, and tell on stderr what it did with CUDA.

    The story says who asked for CUDA first, and how far that went, with the line, the call and the chain of imports; then,
    in order: each further step, every process that was made and whether it may use CUDA, every touch. It is told however
    the program ends. The exit code is the program's own.

    `trace -c "import x"` answers: does importing x initialise CUDA, and which line of which module does it? There the driver is
    asked at each line of the modules' bodies, without --deep.
    """

    options: tuple[str, ...] | None = ("--trace",)

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--all", action="store_true", help="show all frames, those of libraries and Python too")
        parser.add_argument("--json", action="store_true", help="as one JSON object, the last line of stdout, after the program's own output")
        parser.add_argument("--trace", metavar="FILE", help="also write a Chrome trace to FILE, for Perfetto")
        parser.add_argument("--deep", action="store_true", help="find the exact line also where no hook sees CUDA wake; slow")

    def run(self, args: argparse.Namespace) -> int:
        """Run the program, tell the story, leave as the program did."""
        program.check(args.program)
        options = {"mode": "record", **({"trace": args.trace} if args.trace else {})}
        deep = "1" if args.deep else _deep.BODIES if _imports(args.program) else ""
        outcome = watched.watch(args.program, options, {_hooks.DEEP: deep} if deep else {})
        history = read(outcome)
        if args.json:
            print(json.dumps(as_dict(args.program, outcome, history)), flush=True)
        else:
            print(text(args.program, outcome, history, args.all), file=sys.stderr)
        assert outcome.code is not None  # nobody set it a time
        return watched.leave(outcome.code)


def _imports(words: list[str]) -> bool:
    """Whether a program does nothing but import."""
    tree = _source.tree(program.kept(words[1])) if words[0] == "-c" else None
    body = tree.body if tree else []
    return bool(body) and all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in body)


def text(words: list[str], outcome: Outcome, history: History, frames: bool) -> str:
    """The story, between a line that says whose it is and one that says how it ended."""
    if _config.forced_off(os.environ):
        return "cudaguard: nothing was watched: CUDAGUARD=off is set"
    end = f"The program {_ended(outcome)} after {outcome.seconds:.2f} s.{_asked(outcome)}"
    return f"\ncudaguard trace: {blocks.title(words)}\n\n{story.tell(history, frames)}\n\n{end}"


def _asked(outcome: Outcome) -> str:
    """What asking at lines cost. Where it was asked at the bodies' alone, being told of calls costs more than the questions."""
    costs = [event["args"] for event in outcome.events if event["name"] == "deep"]
    count = sum(cost["lines"] for cost in costs)
    seconds = [cost["seconds"] for cost in costs if cost["seconds"] is not None]
    if not costs:
        return ""
    if not seconds:
        return f"\nThe driver was asked at {count:,} lines of modules that were imported."
    return f"\n--deep asked the driver at {count:,} lines, which took about {sum(seconds):.2f} s."


def _ended(outcome: Outcome) -> str:
    code = outcome.code or 0
    return f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"


def as_dict(words: list[str], outcome: Outcome, history: History) -> dict[str, Any]:
    """The story for other programs."""
    head = {"schema": 1, "program": words, "exit": outcome.code, "seconds": round(outcome.seconds, 3), "tier": history.tier}
    steps = [_step(step) for step in history.steps]
    rows = {"steps": steps, "children": [child._asdict() for child in history.children]}
    return {**head, "first": steps[0] if steps else None, **rows, "findings": outcome.findings}


def _step(step: Step) -> dict[str, Any]:
    return {**step._asdict(), "at": step.at._asdict() if step.at else None}


COMMAND = Trace()
