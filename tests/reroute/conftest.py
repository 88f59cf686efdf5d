"""Fixtures of the rerouting tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from rerouted import Ran, run


@pytest.fixture
def reroute(tmp_path: Path) -> Callable[..., Ran]:
    """Run a program in mode `reroute` on the simulated device: see :func:`rerouted.run`."""
    return functools.partial(run, tmp_path)
