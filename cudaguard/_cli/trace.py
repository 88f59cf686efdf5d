"""`trace`: who initialised CUDA, how, through which imports; and every fork."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from .. import _config, _hooks
from . import blocks, program, story, watched
from .history import History, read
from .watched import Outcome


class Trace:
    """Run a program in mode record, and tell on stderr what it did with CUDA.

    The story says who asked for CUDA first, and how far that went, with the line, the call and the chain of imports; then,
    in order: each further step, every process that was made and whether it may use CUDA, every touch. It is told however
    the program ends. The exit code is the program's own.

    `trace -c "import x"` answers: does importing x initialise CUDA, and which line of which module does it?
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
        outcome = watched.watch(args.program, options, {_hooks.DEEP: "1"} if args.deep else {})
        history = read(outcome)
        if args.json:
            print(json.dumps(as_dict(args.program, outcome, history)), flush=True)
        else:
            print(text(args.program, outcome, history, args.all), file=sys.stderr)
        assert outcome.code is not None  # nobody set it a time
        return watched.leave(outcome.code)


def text(words: list[str], outcome: Outcome, history: History, frames: bool) -> str:
    """The story, between a line that says whose it is and one that says how it ended."""
    if _config.forced_off(os.environ):
        return "cudaguard: nothing was watched: CUDAGUARD=off is set"
    end = f"The program {_ended(outcome)} after {outcome.seconds:.2f} s.{_deep(outcome)}"
    return f"\ncudaguard trace: {blocks.title(words)}\n\n{story.tell(history, frames)}\n\n{end}"


def _deep(outcome: Outcome) -> str:
    """What --deep cost."""
    costs = [event["args"] for event in outcome.events if event["name"] == "deep"]
    lines, seconds = sum(cost["lines"] for cost in costs), sum(cost["seconds"] for cost in costs)
    return f"\n--deep asked the driver at {lines:,} lines, which took about {seconds:.2f} s." if costs else ""


def _ended(outcome: Outcome) -> str:
    code = outcome.code or 0
    return f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"


def as_dict(words: list[str], outcome: Outcome, history: History) -> dict[str, Any]:
    """The story for other programs."""
    head = {"schema": 1, "program": words, "exit": outcome.code, "seconds": round(outcome.seconds, 3), "tier": history.tier}
    rows = {"steps": [step._asdict() for step in history.steps], "children": [child._asdict() for child in history.children]}
    return {**head, "first": history.first._asdict() if history.first else None, **rows, "findings": outcome.findings}


COMMAND = Trace()
