"""Fixtures of these tests: the core's way of running a program in a process of its own."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))
from guarded import Program, run


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Run Python source in a process of its own: `program(source, mode="warn", ...)`, see :func:`guarded.run`."""
    return functools.partial(run, tmp_path)
