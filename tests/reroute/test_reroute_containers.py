"""Containers and tensors of every kind arrive as `num_workers=0` would have given them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rerouted import HERE, Ran

PROGRAM = HERE / "container_round_trip.py"


@pytest.mark.parametrize("pin", ["pin", "plain"])
def test_containers_arrive_as_they_were(reroute: Callable[..., Ran], pin: str) -> None:
    ran = reroute(PROGRAM, "fork", pin).ok()
    assert "RESULT ok" in ran.out
    assert set(ran.slugs()) == {"rerouted"}


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_containers_on_a_gpu(reroute: Callable[..., Ran], method: str) -> None:
    assert "RESULT ok" in reroute(PROGRAM, method, "pin", real=True, timeout=900).ok().out
