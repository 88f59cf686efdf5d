"""`check`: would this program work on a machine with a GPU?"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, NamedTuple

from .. import _config, _simulate
from . import UsageError, blocks, github, program, terminal, watched
from .watched import Outcome

METHODS = ("fork", "spawn", "forkserver")
FORMATS = ("text", "json", "github")
CLEAN, FOUND, FAILED = 0, 1, 3
DEVICES = "2"

Finding = dict[str, Any]


class Check:
    """Run a program on a simulated GPU, and report what would fail on a real one.

    Each loader's loop ends after some batches, so that a long training is over soon; a loader that fails is reported, and
    the program goes on after its loop. Where a real GPU is in sight the program runs on that one. The program's own output
    goes to stderr, the report to stdout.

    Exit codes: 0 nothing found, 1 something found (error or warning), 2 a wrong command line, 3 the program failed by itself
    or did not end in time.
    """

    options: tuple[str, ...] | None = ("--steps", "--timeout", "--format", "--start-methods")

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--steps", type=int, default=2, metavar="N", help="end each loader's loop after N batches (default 2; 0: never)")
        parser.add_argument("--timeout", type=float, default=300, metavar="S", help="seconds for each run (default 300)")
        parser.add_argument("--format", choices=FORMATS, default="text", help="github: annotations for a workflow's log")
        parser.add_argument("--start-methods", metavar="LIST", help="run once with each, where the program leaves it open (default fork on Linux)")

    def run(self, args: argparse.Namespace) -> int:
        """Run the program with each start method, and report."""
        program.check(args.program)
        if _config.forced_off(os.environ):
            raise UsageError("CUDAGUARD=off is set: nothing can be checked")
        real = _simulate._real()
        runs = [_try(args.program, method, args, bool(real)) for method in _methods(args.start_methods)]
        found = merged(runs)
        code = verdict(runs, found)
        terminal.show(SHOW[args.format](args.program, runs, found, code, real))
        return code


class Try(NamedTuple):
    """One run of the program. `stopped` are the places of loops that were ended early."""

    method: str | None
    outcome: Outcome
    stopped: int


def _methods(text: str | None) -> list[str | None]:
    if text is None:
        return ["fork" if sys.platform == "linux" else None]
    wanted = [name.strip() for name in text.split(",")]
    wrong = [name for name in wanted if name not in METHODS]
    if wrong:
        raise UsageError(f"unknown start method {wrong[0]!r}; legal: {', '.join(METHODS)}")
    return list(dict.fromkeys(wanted))


def _try(words: list[str], method: str | None, args: argparse.Namespace, real: bool) -> Try:
    """Run the program; once more with whole loops if it failed by itself after one was cut short, which may be why."""
    first = _once(words, method, args.steps, args.timeout, real)
    if first.outcome.code and first.stopped and not _grave(first.outcome.findings):
        return _once(words, method, 0, args.timeout, real)
    return first


def _once(words: list[str], method: str | None, steps: int, timeout: float, real: bool) -> Try:
    variables = {"_CUDAGUARD_STEPS": str(max(steps, 0)), **({"_CUDAGUARD_START_METHOD": method} if method else {})}
    if not real:
        variables["CUDAGUARD_SIMULATE"] = os.environ.get("CUDAGUARD_SIMULATE") or DEVICES
    outcome = watched.watch(words, {"mode": "error"}, variables, timeout, sys.stderr)
    return Try(method, outcome, sum(event["name"] == "loader stopped" for event in outcome.events))


def _grave(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding["severity"] in ("error", "warning")]


def merged(runs: list[Try]) -> list[Finding]:
    """The findings of all runs, each once, with the start methods under which it was found."""
    found: dict[tuple[object, ...], Finding] = {}
    for run in runs:
        for finding in run.outcome.findings:
            place = finding["touch"] or finding["fork"] or {}
            known = found.setdefault((finding["slug"], place.get("file"), place.get("line")), {**finding, "start_methods": []})
            if run.method not in known["start_methods"]:
                known["start_methods"].append(run.method)
    return list(found.values())


def aside(found: list[Finding]) -> str:
    """What the guard says of itself where it failed inside, "" if it did not: it may then have missed anything."""
    return next((finding["message"] for finding in found if finding["slug"] == "internal"), "")


def verdict(runs: list[Try], found: list[Finding]) -> int:
    """The exit code."""
    if _grave(found):
        return FOUND
    return FAILED if aside(found) or any(run.outcome.code != 0 for run in runs) else CLEAN


def ended(run: Try) -> str:
    """How a run ended, for people."""
    code, seconds = run.outcome.code, run.outcome.seconds
    if code is None:
        return f"did not end within {seconds:.0f} s, and was stopped"
    how = f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"
    return f"{how} after {seconds:.1f} s"


def where(real: str) -> str:
    """What the program ran on."""
    return f"on the GPU of this machine ({real})" if real else "on simulated GPUs"


def as_text(words: list[str], runs: list[Try], found: list[Finding], code: int, real: str) -> str:
    """The report for people."""
    grave = _grave(found)
    lines = [terminal.heading(f"cudaguard check: {blocks.title(words)}, {where(real)}")]
    lines += [f"  {f'start method {run.method}: ' if run.method else ''}the program {ended(run)}" for run in runs]
    lines += [line for finding in grave for line in ("", *blocks.block(finding))]
    return "\n".join([*lines, "", _summary(grave, code, aside(found))])


def _summary(grave: list[Finding], code: int, fault: str) -> str:
    if fault and code == FAILED:
        return f"Nothing is proved: {fault}"
    if code == FOUND:
        return f"{len(grave)} {'thing' if len(grave) == 1 else 'things'} would fail on a machine with a GPU."
    return "The program failed by itself, with nothing of CUDA and processes to blame." if code == FAILED else "Nothing would fail."


def as_json(words: list[str], runs: list[Try], found: list[Finding], code: int, real: str) -> str:
    """The report for other programs."""
    told = [
        {"start_method": run.method, "exit": run.outcome.code, "seconds": round(run.outcome.seconds, 3), "loaders_stopped": run.stopped}
        for run in runs
    ]
    return json.dumps({"schema": 1, "program": words, "simulated": not real, "verdict": code, "runs": told, "findings": found}, indent=2)


def as_github(words: list[str], runs: list[Try], found: list[Finding], code: int, real: str) -> str:
    """The report as annotations: one at the user's line for each finding."""
    lines = [github.finding(finding) for finding in _grave(found)]
    if code == FAILED:
        ends = "; ".join(ended(run) for run in runs)
        why = aside(found) or f"{blocks.title(words)} failed by itself: it {ends}"
        lines = [github.plain("error", "cudaguard check", why)]
    return "\n".join([*lines, _summary(_grave(found), code, aside(found))])


SHOW = {"text": as_text, "json": as_json, "github": as_github}
COMMAND = Check()
