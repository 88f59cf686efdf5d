"""Every test here runs the command in a process of its own, as a user does."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import environment

Result = subprocess.CompletedProcess[str]


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
