"""Every test here runs the command in a process of its own, as a user does."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Result = subprocess.CompletedProcess[str]
_spec = importlib.util.find_spec("cudaguard")
assert _spec is not None
assert _spec.origin is not None
ROOT = str(Path(_spec.origin).parent.parent)  # found, not imported: importing it would turn the guard on here


def environment(**variables: str) -> dict[str, str]:
    """The environment of a command: ours, without the guard's variables and those that change what a stream can show."""
    drop = ("CUDAGUARD", "_CUDAGUARD", "NO_COLOR", "PYTORCH_", "CUDA_VISIBLE", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    return {**kept, "PYTHONPATH": ROOT, "PYTHONIOENCODING": "utf-8", **variables}


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., Result]:
    """Run python in the test's folder."""

    def run(*words: str, env: dict[str, str] | None = None, flags: tuple[str, ...] = (), **settings: Any) -> Result:
        command = [sys.executable, *flags, *words]
        return subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", cwd=tmp_path, env=environment(**(env or {})), timeout=240, **settings
        )

    return run


@pytest.fixture
def cudaguard(python: Callable[..., Result]) -> Callable[..., Result]:
    """Run `python -m cudaguard` in the test's folder."""

    def run(*words: str, **settings: Any) -> Result:
        return python("-m", "cudaguard", *words, **settings)

    return run


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a file in the test's folder."""

    def put(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return put
