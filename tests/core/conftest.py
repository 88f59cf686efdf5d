"""Fixtures of the core's tests."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from guarded import Program, run


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Run Python source in a process of its own: `program(source, mode="warn", ...)`, see :func:`guarded.run`."""
    return functools.partial(run, tmp_path)
