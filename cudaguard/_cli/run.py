"""`run`: a program under the guard."""

from __future__ import annotations

import argparse
import sys

from .. import _trace
from . import UsageError, program


class Run:
    """Run a program under the guard, in this process. The exit code is the program's own.

    Its findings go to stderr as errors and warnings, by mode, and to the report.
    """

    options: tuple[str, ...] | None = ("--mode", "--report", "--trace")

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--mode", metavar="MODE", help="record, warn, error, reroute, respawn or off (default: CUDAGUARD, else error)")
        parser.add_argument("--report", metavar="PATH", help="append findings to PATH as JSON Lines")
        parser.add_argument("--trace", metavar="PATH", help="write a Chrome trace to PATH, for Perfetto")
        parser.add_argument("--inline-workers", action="store_true", help="give every DataLoader num_workers=0, and say afterwards what that proves")

    def run(self, args: argparse.Namespace) -> int | None:
        """Arm, then find the program: finding a module imports the packages it lies in."""
        if args.inline_workers:
            return _inline(args)
        _trace.entitle(program.title(args.program))
        arm(args.mode, args.report, args.trace)
        program.execute(args.program)
        return None


def _inline(args: argparse.Namespace) -> int:
    from . import inline, watched

    given = {name: value for name in ("mode", "report", "trace") if (value := getattr(args, name)) is not None}
    code, proof = inline.run(args.program, given)
    print(proof, file=sys.stderr)
    return watched.leave(code)


def arm(mode: str | None, report: str | None, trace: str | None) -> None:
    """Turn the guard on. A wrong mode here is an error; a wrong variable was complained of at import, and leaves it off."""
    from .. import _config, enable

    if mode is not None:
        try:
            _config.mode(mode)
        except _config.ConfigError as error:
            raise UsageError(str(error)) from None
    try:
        enable(mode, report=report, trace=trace)
    except _config.ConfigError as error:
        if mode is not None or report or trace:
            raise UsageError(str(error)) from None


COMMAND = Run()
