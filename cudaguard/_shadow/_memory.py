"""Memory figures of idle devices."""

from __future__ import annotations

from typing import Any

from cudaguard._shadow._state import state

_COUNTERS = """allocation segment active inactive_split allocated_bytes reserved_bytes active_bytes inactive_split_bytes requested_bytes""".split()
_TOTALS = "num_alloc_retries num_ooms max_split_size num_sync_all_streams num_device_alloc num_device_free".split()
_fraction: dict[int, float] = {}


def stats(*args: Any) -> dict[str, Any]:
    """The nested dict of the caching allocator, all zero."""

    def zero() -> dict[str, int]:
        return dict.fromkeys(("current", "peak", "allocated", "freed"), 0)

    found: dict[str, Any] = {name: {pool: zero() for pool in ("all", "large_pool", "small_pool")} for name in _COUNTERS}
    found.update({"oversize_allocations": zero(), "oversize_segments": zero()}, **dict.fromkeys(_TOTALS, 0))
    return found


def nothing(*args: Any, **kwargs: Any) -> None:
    return None


def snapshot(*args: Any) -> dict[str, Any]:
    return {"segments": [], "device_traces": [], "allocator_settings": {}, "external_annotations": []}


def set_fraction(fraction: float, index: int) -> None:
    _fraction[index] = fraction


def get_fraction(index: int) -> float:
    return _fraction.get(index, 1.0)


def backend() -> str:
    return "native"


def ready() -> bool:
    return state.policy.current() >= 0 and not state.policy.bad_fork()


CUDA = {
    "emptyCache": "nothing",
    "memoryStats": "stats",
    "hostMemoryStats": "stats",
    "resetAccumulatedMemoryStats": "nothing",
    "resetPeakMemoryStats": "nothing",
    "resetAccumulatedHostMemoryStats": "nothing",
    "resetPeakHostMemoryStats": "nothing",
    "memorySnapshot": "snapshot",
    "setMemoryFraction": "set_fraction",
    "getMemoryFraction": "get_fraction",
    "getAllocatorBackend": "backend",
    "record_memory_history": "nothing",
    "record_memory_history_legacy": "nothing",
    "setMemoryMetadata": "nothing",
}
ACCELERATOR = {
    "isAllocatorInitialized": "ready",
    "emptyCache": "nothing",
    "emptyHostCache": "nothing",
    "getDeviceStats": "stats",
    "resetAccumulatedStats": "nothing",
    "resetPeakStats": "nothing",
}
