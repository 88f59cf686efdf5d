"""Print for people: colour on a terminal only, and in whatever encoding the stream has."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TextIO

BOLD, YELLOW, PLAIN = "\033[1m", "\033[33m", "\033[0m"


def colours(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a stream shows colour: a terminal, and nobody said NO_COLOR (no-color.org: any value but an empty one)."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def heading(text: str, stream: TextIO | None = None) -> str:
    """A heading, bold where that shows."""
    return f"{BOLD}{text}{PLAIN}" if colours(stream or sys.stdout) else text


def warning(text: str, stream: TextIO | None = None) -> str:
    """A word that stands out, yellow where that shows."""
    return f"{YELLOW}{text}{PLAIN}" if colours(stream or sys.stdout) else text


def show(text: str) -> None:
    """Print to stdout. What its encoding lacks is escaped; a reader who went away, as `head` does, is no error."""
    encoding = sys.stdout.encoding or "ascii"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains again when it ends
