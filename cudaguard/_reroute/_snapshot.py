"""What the parent knows about its GPUs when it makes workers: a worker's questions are answered from it. Nothing is woken to learn it."""

from __future__ import annotations

import ctypes
import os
from typing import Any, NamedTuple

import torch

from .. import _driver
from .._shadow import Policy, state
from .._shadow._policy import Properties


class Snapshot(NamedTuple):
    """Devices by index. `memory` is (free, total) in bytes; `current` is the device of the thread that made the worker."""

    properties: tuple[Any, ...]
    memory: tuple[tuple[int, int], ...]
    current: int = 0
    arch: str | None = None

    def portable(self) -> Snapshot:
        """The same, in a form that pickles: torch's own objects do not."""
        return self._replace(properties=tuple(Copied(p) for p in self.properties))


def take() -> Snapshot:
    """Look now. In a child, the best that can be known there without a driver."""
    if state.installed:
        return _from_policy(state.policy)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return _from_torch()
    return _from_driver() if _driver.up() else _unknown(torch.cuda.device_count())


def _from_policy(policy: Policy) -> Snapshot:
    devices = range(policy.count)
    return Snapshot(tuple(policy.properties(i) for i in devices), tuple(policy.memory(i) for i in devices), policy.current(), policy.arch_flags())


def _from_torch() -> Snapshot:
    devices = range(torch.cuda.device_count())
    properties = tuple(torch.cuda.get_device_properties(i) for i in devices)
    memory = tuple(_memory(i, properties[i]) for i in devices)
    return Snapshot(properties, memory, torch.cuda.current_device(), _arch())


def _memory(index: int, properties: Any) -> tuple[int, int]:
    """Asking for a device's free memory makes a context there, so only a device that has one is asked."""
    if torch._C._cuda_hasPrimaryContext(index):  # type: ignore[attr-defined]
        return torch.cuda.mem_get_info(index)
    return properties.total_memory, properties.total_memory


def _arch() -> str | None:
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    return flags() if flags is not None else None


class Copied(Properties):
    """The properties that a torch object has."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        for name in dir(source):
            value = None if name.startswith("_") else getattr(source, name, None)
            if isinstance(value, (int, float, str)):
                setattr(self, name, value)


class Known(Properties):
    """The properties that the driver's own functions tell; the others are those of a typical device."""

    def __init__(self, index: int, name: str, capability: tuple[int, int], total: int, processors: int) -> None:
        super().__init__(index)
        self.name, (self.major, self.minor) = name, capability
        self.total_memory, self.multi_processor_count = total, processors


# CU_DEVICE_ATTRIBUTE_…
PROCESSORS, MAJOR, MINOR = 16, 75, 76


def _from_driver() -> Snapshot:
    """Somebody woke the driver, but not torch: the driver's own functions make no context."""
    library = ctypes.CDLL(_driver.LIBRARY, mode=getattr(os, "RTLD_NOLOAD", 0) | getattr(os, "RTLD_LAZY", 0))
    count = ctypes.c_int()
    if library.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return _unknown(0)
    properties = tuple(_ask(library, i) for i in range(count.value))
    return Snapshot(properties, tuple((p.total_memory, p.total_memory) for p in properties), 0, _arch())


def _ask(library: Any, index: int) -> Known:
    device, total, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(name, 256, device)
    library.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    processors, major, minor = (_attribute(library, device, which) for which in (PROCESSORS, MAJOR, MINOR))
    return Known(index, name.value.decode(errors="replace"), (major, minor), total.value, processors)


def _attribute(library: Any, device: Any, which: int) -> int:
    value = ctypes.c_int()
    library.cuDeviceGetAttribute(ctypes.byref(value), which, device)
    return value.value


def _unknown(count: int) -> Snapshot:
    properties = tuple(Known(i, "CUDA device", (0, 0), 0, 0) for i in range(count))
    return Snapshot(properties, ((0, 0),) * count)
