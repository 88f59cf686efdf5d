"""What the guard was asked to do: the environment and keyword arguments, read into one frozen record.

Imports nothing of the package. A wrong value is never an exception here: :class:`ConfigError` carries the one line
to print, and the caller decides whether that stops anything.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

MODES = ("off", "record", "warn", "error", "reroute", "respawn")
SHORT = {"0": "off", "1": "error"}
FORBIDDABLE = ("import",)  # what CUDAGUARD_FORBID takes
NOT_BUILT = frozenset({"respawn"})  # these act as `error`, and the first error text says so
DEFAULT_COPY_LIMIT = 1 << 30  # bytes


class ConfigError(ValueError):
    """A value that is not legal; the text is one line and names the legal ones."""


class Ignore(NamedTuple):
    """One entry of CUDAGUARD_IGNORE: a slug, perhaps only in one file, perhaps only at one line."""

    slug: str
    file: str | None = None
    line: int | None = None


class Config(NamedTuple):
    """How the guard behaves. Paths are absolute: children may run elsewhere."""

    mode: str = "off"
    report: str | None = None
    trace: str | None = None
    ignore: tuple[Ignore, ...] = ()
    copy_limit: int = DEFAULT_COPY_LIMIT
    forbid: str | None = None  # where initialising CUDA raises: while importing

    @property
    def acting(self) -> str:
        """The mode whose behaviour is used: a mode that is not built yet acts as `error`."""
        return "error" if self.mode in NOT_BUILT else self.mode


OFF = Config()
NO_ENVIRONMENT: Mapping[str, str] = {}


def environ() -> Mapping[str, str]:
    """The environment, or nothing under `python -E` and `-I`: as Python does with its own variables."""
    return NO_ENVIRONMENT if sys.flags.ignore_environment else os.environ


_current = OFF


def current() -> Config:
    """The configuration in force in this process."""
    return _current


def use(config: Config) -> None:
    """Put a configuration in force."""
    global _current
    _current = config


def mode(text: str) -> str:
    """Read a mode. Raises ConfigError, which names the legal ones."""
    name = SHORT.get(text, text)
    if name not in MODES:
        raise ConfigError(f"mode {text!r} is not known; legal: {', '.join(MODES)}, 0, 1")
    return name


def forced_off(environ: Mapping[str, str]) -> bool:
    """Whether the environment forbids the guard, whatever a program asks for."""
    return SHORT.get(environ.get("CUDAGUARD", ""), environ.get("CUDAGUARD", "")) == "off"


def from_environ(environ: Mapping[str, str], default: str = "error") -> Config:
    """Read every variable of the guard. Raises ConfigError for the first value that is not legal."""
    return Config(
        mode(environ.get("CUDAGUARD") or default),
        path(environ.get("CUDAGUARD_REPORT")),
        path(environ.get("CUDAGUARD_TRACE")),
        tuple(_ignore(entry) for entry in environ.get("CUDAGUARD_IGNORE", "").split(",") if entry.strip()),
        _bytes(environ.get("CUDAGUARD_COPY_LIMIT")),
        _forbid(environ.get("CUDAGUARD_FORBID")),
    )


def path(text: str | os.PathLike[str] | None) -> str | None:
    """Make a path absolute, as of now: the program may change its folder later."""
    return os.path.abspath(text) if text else None


def _ignore(entry: str) -> Ignore:
    slug, _, place = entry.strip().partition("@")
    file, _, line = place.rpartition(":") if place.rpartition(":")[2].isdigit() else (place, "", "")
    return Ignore(slug, file or None, int(line) if line else None)


def _forbid(text: str | None) -> str | None:
    if text and text not in FORBIDDABLE:
        raise ConfigError(f"CUDAGUARD_FORBID {text!r} is not known; legal: {', '.join(FORBIDDABLE)}")
    return text or None


def _bytes(text: str | None) -> int:
    if not text:
        return DEFAULT_COPY_LIMIT
    if not text.isdigit():
        raise ConfigError(f"CUDAGUARD_COPY_LIMIT {text!r} is not a number of bytes; legal: a whole number, as 1073741824")
    return int(text)
