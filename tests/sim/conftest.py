"""Programs of the conformance suite, run once per session under the simulated device, as tables of what they printed."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import conformance
import pytest


@functools.cache
def _printed(name: str) -> dict[str, str]:
    return conformance.run(name, SimpleNamespace(simulate=2, show=False))


@pytest.fixture
def printed() -> Callable[[str], dict[str, str]]:
    """What a program printed, by the name of the line."""
    return _printed


@pytest.fixture
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a piece of Python in a process of its own, with these CUDAGUARD variables and no others."""

    def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("CUDA")}
        return subprocess.run([sys.executable, "-c", code], env=clean | variables, capture_output=True, text=True, timeout=120)

    return run
