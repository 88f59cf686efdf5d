"""Random batches arrive as plain CPU code makes them, on the devices they were sent to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rerouted import HERE, Ran

PROGRAM = HERE / "random_batches.py"


def test_random_batches_arrive_as_they_were(reroute: Callable[..., Ran]) -> None:
    assert "RESULT ok 60" in reroute(PROGRAM, "60", "1").ok().out


@pytest.mark.gpu
def test_random_batches_on_a_gpu(reroute: Callable[..., Ran]) -> None:
    assert "RESULT ok 100" in reroute(PROGRAM, "100", "2", real=True, timeout=900).ok().out
