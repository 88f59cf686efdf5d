"""Which device did the caller mean, and may it be reached?"""

from __future__ import annotations

from typing import Any

import torch

from cudaguard._shadow._errors import driver_error
from cudaguard._shadow._state import settle, state

Device = torch.device  # the real class: `torch.device` itself is replaced later
CPU = Device("cpu")


def cuda_index(device: Any) -> int | None:
    """The index a device names: None if it is not CUDA, the current one if it says only "cuda". Asks nobody."""
    kind = type(device)
    if kind is str:
        if not device.startswith("cuda"):
            return None
        device = Device(device)
    elif kind is int:
        return int(device)  # a bare number is an index on the accelerator
    elif kind is not Device:
        return None
    if device.type != "cuda":
        return None
    return state.policy.current() if device.index is None else int(device.index)


def arrive(device: Any) -> int | None:
    """Like `cuda_index`, for a call that puts something there: goes through torch's lazy initialisation."""
    index = cuda_index(device)
    if index is not None:
        settle()
        state.policy.arrive()
        check(index)
    return index


def arrive_raw(device: Any, call: str) -> int | None:
    """The same for the doors that go straight to the driver."""
    index = cuda_index(device)
    if index is not None:
        settle()
        state.policy.arrive(call)
        check(index)
    return index


def check(index: int) -> None:
    if not 0 <= index < state.policy.count:
        raise driver_error("invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?")
