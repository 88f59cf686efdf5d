"""The command line: one module per command, and this table of them.

A command is a small class: its docstring is its help, `prepare` names its options, `run` does the work and gives the
exit code. :func:`main` is the only place that prints errors.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

USAGE = 2  # the exit code for a command line that cannot be understood

# A command's module is imported when it is asked for.
COMMANDS = {
    "run": "run a program under the guard; `python -m cudaguard script.py` is short for it",
    "trace": "run a program, then tell who initialised CUDA first, how, through which imports, and every fork",
    "check": "run a program on a simulated GPU, and report what would fail on a real one; for laptops and CI",
    "doctor": "say what is on, what is watched, and what in this environment matters",
    "explain": "explain a finding: what happened, why, and every way to repair it",
}


class UsageError(Exception):
    """A command line that cannot be understood; the text is one line."""


class Command(Protocol):
    """What every command offers."""

    options: tuple[str, ...] | None  # of a command that runs a program: its options that take a value; else None

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's options."""

    def run(self, args: argparse.Namespace) -> int | None:
        """Do it; gives the exit code, None for 0."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, printed by :func:`main`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line; argparse would print the usage before it."""
        raise UsageError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int | None:
    """Carry out a command line; gives the exit code. What the user's program raises passes through."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except UsageError as error:
        print(f"cudaguard: {error}", file=sys.stderr)
        return USAGE


def _dispatch(arguments: list[str]) -> int | None:
    if not arguments:
        print(_help(), file=sys.stderr)
        return USAGE
    if arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"cudaguard {_version()}")
        return 0
    name, rest = (arguments[0], arguments[1:]) if arguments[0] in COMMANDS else ("run", arguments)
    return _carry_out(name, rest)


def _carry_out(name: str, arguments: list[str]) -> int | None:
    command: Command = importlib.import_module(f".{name}", __name__).COMMAND
    options, program = (arguments, None) if command.options is None else split(arguments, command.options)
    parser = Parser(prog=f"python -m cudaguard {name}", description=_described(command))
    command.prepare(parser)
    if program is not None:
        parser.usage = f"python -m cudaguard {name} [options] (script.py | -m module | -c code) [argument ...]"
    args = parser.parse_args(options)
    args.program = program
    return command.run(args)


def split(arguments: list[str], with_value: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Part the guard's own options from the program and its arguments.

    argparse cannot: an option after the program is the program's, whatever it is called.
    """
    at = 0
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] not in ("-m", "-c", "--"):
        at += 2 if arguments[at] in with_value else 1
    program = arguments[at:]
    return arguments[:at], program[1:] if program[:1] == ["--"] else program


def _described(command: Command) -> str:
    import inspect

    return inspect.cleandoc(type(command).__doc__ or "")


def _help() -> str:
    width = max(map(len, COMMANDS))
    rows = [f"  {name:<{width}}  {what}" for name, what in COMMANDS.items()]
    return "\n".join(
        [
            "usage: python -m cudaguard COMMAND ...",
            "       python -m cudaguard [options] (script.py | -m module | -c code) [argument ...]",
            "",
            "Says which line initialised CUDA, which line forked, which line touched it, and what to paste.",
            "",
            "commands:",
            *rows,
            "",
            "python -m cudaguard COMMAND --help tells more.",
        ]
    )


def _version() -> str:
    from .. import __version__

    return __version__
