"""NestedTensors of both layouts through a loader: 48 combinations, each of five kinds, equal on the other side."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rerouted import HERE, Ran

PROGRAM = HERE / "nested_round_trip.py"


@pytest.mark.parametrize("pin", ["pin", "plain"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_nested_tensors_arrive_as_they_were(reroute: Callable[..., Ran], method: str, pin: str) -> None:
    ran = reroute(PROGRAM, method, pin, "1").ok()
    assert "RESULT ok 48 of 48" in ran.out
    assert "rerouted" in ran.slugs()


@pytest.mark.gpu
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("pin", ["pin", "plain"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_nested_tensors_on_a_gpu(reroute: Callable[..., Ran], method: str, pin: str) -> None:
    times = "3" if method == "fork" else "1"
    ran = reroute(PROGRAM, method, pin, times, real=True, timeout=2900).ok()
    assert f"RESULT ok {48 * int(times)} of" in ran.out
