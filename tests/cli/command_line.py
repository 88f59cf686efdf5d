"""The environment in which the tests of the command line run it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

_spec = importlib.util.find_spec("cudaguard")
assert _spec is not None
assert _spec.origin is not None
ROOT = str(Path(_spec.origin).parent.parent)  # found, not imported: importing it would turn the guard on here


def environment(**variables: str) -> dict[str, str]:
    """The environment of a command: ours, without the guard's variables and those that change what a stream can show."""
    drop = ("CUDAGUARD", "_CUDAGUARD", "NO_COLOR", "PYTORCH_", "CUDA_VISIBLE", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    return {**kept, "PYTHONPATH": ROOT, "PYTHONIOENCODING": "utf-8", **variables}
