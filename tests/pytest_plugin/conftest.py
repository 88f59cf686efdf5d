"""Runs of pytest in processes of their own, as users make them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))
from guarded import environment

Session = Callable[..., pytest.RunResult]


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Run pytest with arguments on the files in pytester's folder; `simulate=None` for no devices."""

    def run(*args: str, simulate: str | None = "2", **variables: str) -> pytest.RunResult:
        wanted = environment(CUDAGUARD_SIMULATE=simulate, **variables)
        for name in set(os.environ) - set(wanted):
            monkeypatch.delenv(name)
        for name, value in wanted.items():
            monkeypatch.setenv(name, value)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *args, timeout=240)

    return run
