"""Run a program in a process of its own, and learn afterwards what it and all its children did.

In a process of its own, so that the story is told even if the program crashes, is killed or leaves by os._exit. All its
processes append to two files: the report (findings) and the trace (everything else).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

Event = dict[str, Any]

SIGNALS = ("SIGTERM", "SIGHUP", "SIGINT")


class Outcome(NamedTuple):
    """A program that has ended. `began` is the time in microseconds on the trace's clock; `code` is negative for a signal."""

    code: int | None  # None: it was stopped because its time was over
    began: int
    seconds: float
    events: list[Event]
    findings: list[dict[str, Any]]


def watch(words: Sequence[str], options: Mapping[str, str], variables: Mapping[str, str], timeout: float | None = None, to: Any = None) -> Outcome:
    """Run a program under the guard and wait for it.

    Args:
        words: the program and its arguments.
        options: of `cudaguard run`; a report and a trace are written to files of our own where none are named.
        variables: for its environment, and for that of its children.
        timeout: seconds; its whole family is killed after them.
        to: where its stdout goes, as for subprocess; None: to ours.
    """
    with tempfile.TemporaryDirectory(prefix="cudaguard-") as folder:
        files = {name: Path(options.get(name) or os.environ.get(f"CUDAGUARD_{name.upper()}") or f"{folder}/{name}") for name in ("report", "trace")}
        sizes = {name: _size(path) for name, path in files.items()}
        given = [f"--{name}={value}" for name, value in {**options, **files}.items()]
        began = time.monotonic_ns() // 1000
        code = _run([*_python(), "-m", "cudaguard", "run", *given, "--", *words], {**os.environ, **variables}, timeout, to)
        seconds = time.monotonic_ns() / 1e9 - began / 1e6
        return Outcome(code, began, seconds, *(read_lines(files[name], sizes[name]) for name in ("trace", "report")))


def _python() -> list[str]:
    """This interpreter, with the flags it was started with."""
    return [sys.executable, *subprocess._args_from_interpreter_flags()]  # type: ignore[attr-defined]


def _run(command: list[str], environ: Mapping[str, str], timeout: float | None, to: Any) -> int | None:
    """Run a command; signals meant for it reach it. A group of its own only where it may have to be killed: else it must keep the terminal."""
    process = subprocess.Popen(command, env=environ, stdout=to, start_new_session=timeout is not None)
    with _passing_on(process, alone=timeout is not None):
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            _kill(process)
            return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a program and its children: workers of a loader that hangs would hold our output open."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


@contextmanager
def _passing_on(process: subprocess.Popen[bytes], alone: bool) -> Iterator[None]:
    def forward(number: int, frame: object) -> None:
        if number != signal.SIGINT or alone or not _from_terminal():
            process.send_signal(number)

    before = {name: signal.signal(getattr(signal, name), forward) for name in SIGNALS if hasattr(signal, name)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def _from_terminal() -> bool:
    """Whether a Ctrl-C comes from a terminal, which sends it to the program as well: to pass it on would make it two."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _size(path: Path) -> int:
    """The length of what an earlier run left in a file."""
    return path.stat().st_size if path.exists() else 0


def read_lines(file: str | Path, skip: int = 0) -> list[Event]:
    """The records of a report or a trace, after what was there before. A line that is torn, because its process was killed, is left out."""
    path = Path(file)
    if not path.exists():
        return []
    lines = path.read_bytes()[skip:].decode("utf-8", "replace").splitlines()
    return [record for line in lines for record in _record(line.lstrip("[,"))]


def _record(line: str) -> list[Event]:
    try:
        return [json.loads(line)]
    except ValueError:
        return []


def leave(code: int) -> int:
    """The exit code of a program as ours; where a signal ended it, end by the same, as a shell expects."""
    if code >= 0:
        return code
    sys.stdout.flush()
    _no_core()
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code


def _no_core() -> None:
    """The program has left its core file, if it leaves one: ours would tell nothing."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
