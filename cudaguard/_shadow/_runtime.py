"""The C half of ``torch.cuda`` and ``torch.accelerator``, in Python: torch's own Python half then runs as it is.

A CPU build of torch has the Python half too, only its C functions are missing. So one table of those gives all of ``torch.cuda`` in
every version, with that version's own checks, locks and sentences.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from cudaguard._shadow import _generators, _memory, _streams
from cudaguard._shadow._devices import Device, check, cuda_index
from cudaguard._shadow._patch import put, wrap
from cudaguard._shadow._state import settle, state

cuda: Any = torch.cuda


def get_device_count() -> int:
    settle()
    return state.policy.visible()


def arch_flags() -> str | None:
    settle()
    return state.policy.arch_flags()


def init() -> None:
    settle()
    state.policy.start()
    _generators.seed_defaults()
    put(torch.cuda, "_get_device_properties", properties, create=True)


def is_in_bad_fork() -> bool:
    settle()
    return state.policy.bad_fork()


def properties(index: int) -> Any:
    return state.policy.properties(index)


def get_device() -> int:
    return state.policy.current()


def set_device(index: int) -> None:
    exchange_device(index)


def exchange_device(index: int) -> int:
    if index < 0:
        return -1
    settle()
    state.policy.initialise()
    check(index)
    before = state.policy.current()
    state.policy.set_current(index)
    return before


def get_accelerator(*args: Any) -> torch.device:
    """The accelerator, after asking the driver whether there is one: behind torch's back, so later forks are not marked."""
    settle()
    state.policy.raw("torch._C._get_accelerator")
    return Device("cuda")


def device_index() -> int:
    settle()
    state.policy.initialise()
    return state.policy.current()


def memory_info(index: int) -> tuple[int, int]:
    settle()
    state.policy.initialise()
    check(index)
    return state.policy.memory(index)


def has_primary_context(index: int) -> bool:
    settle()
    state.policy.raw("torch._C._cuda_hasPrimaryContext")
    return bool(cuda.is_initialized())


def _show_config(original: Any) -> Any:
    """The build's configuration. It counts the devices first; C++ swallows what goes wrong in that."""

    def show_config() -> Any:
        settle()
        with suppress(RuntimeError):
            state.policy.raw("torch._C._show_config")
        return original()

    return show_config


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _refuse(what: str, instead: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise state.policy.lacking(what, instead)

    return refuse


_KERNELS = "it needs a real GPU; run this part there, or leave it out where torch.cuda.get_device_name() says 'Simulated CUDA device'"

CUDA: dict[str, Callable[..., Any]] = {
    "getDeviceCount": get_device_count,
    "getArchFlags": arch_flags,
    "init": init,
    "isInBadFork": is_in_bad_fork,
    "getDevice": get_device,
    "setDevice": set_device,
    "exchangeDevice": exchange_device,
    "maybeExchangeDevice": exchange_device,
    "getCurrentStream": _streams.current,
    "getDefaultStream": _streams.default,
    "getCurrentRawStream": _always(0),
    "getStreamFromExternal": lambda pointer, index: (pointer, index, _streams.KIND),
    "setStream": _streams.select,
    "synchronize": _nothing,
    "ipc_collect": _nothing,
    "sleep": _nothing,
    "canDeviceAccessPeer": _always(True),
    "hasPrimaryContext": has_primary_context,
    "getCompiledVersion": _always(0),
    "getDriverVersion": _always(0),
    "set_sync_debug_mode": _nothing,
    "get_sync_debug_mode": _always(0),
    "isCurrentStreamCapturing": _always(False),
    "lock_mutex": _nothing,
    "unlock_mutex": _nothing,
    "getCurrentBlasHandle": _refuse("The cuBLAS handle", _KERNELS),
    "getCurrentSolverHandle": _refuse("The cuSOLVER handle", _KERNELS),
    "jiterator_compile_and_launch_kernel": _refuse("torch.cuda.jiterator", _KERNELS),
    **{name: getattr(_memory, function) for name, function in _memory.CUDA.items()},
}

ACCELERATOR: dict[str, Callable[..., Any]] = {
    "getAccelerator": _always(Device("cuda")),
    "deviceCount": get_device_count,
    "getDeviceIndex": device_index,
    "setDeviceIndex": set_device,
    "exchangeDevice": exchange_device,
    "maybeExchangeDevice": exchange_device,
    "getStream": _streams.current_object,
    "setStream": lambda stream: _streams.select(stream.stream_id, stream.device_index, stream.device_type),
    "synchronizeDevice": _nothing,
    "getMemoryInfo": memory_info,
    "getDeviceCapability": _always({"supported_dtypes": {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool}}),
    **{name: getattr(_memory, function) for name, function in _memory.ACCELERATOR.items()},
}


class Cudart:
    """``torch.cuda.cudart()``."""

    class cudaError:
        success = 0

    cudaMemGetInfo = staticmethod(memory_info)
    cudaProfilerStart = cudaProfilerStop = staticmethod(_always(0))
    cudaHostRegister = cudaHostUnregister = staticmethod(_always(0))

    @staticmethod
    def cudaGetErrorString(code: int) -> str:
        return f"simulated CUDA error {code}"


def _visible_devices(*args: Any) -> int:
    """NVML's answer, which wakes nobody."""
    return state.policy.listed()


def device(kind: Any) -> Any:
    """``torch.device``: a C class that cannot be told about an accelerator, so a bare number is translated here."""

    class Meta(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, kind)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, kind)

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else kwargs.get("device", kwargs.get("type"))
        if type(first) is int and len(args) + len(kwargs) == 1:
            return kind("cuda", cuda_index(first))
        return kind(*args, **kwargs)

    return Meta("device", (), {"__new__": new, "__module__": "torch", "__doc__": kind.__doc__})


def install() -> None:
    for name, function in CUDA.items():
        put(torch._C, f"_cuda_{name}", function, create=True)
    for name, function in ACCELERATOR.items():
        put(torch._C, f"_accelerator_{name}", function, create=hasattr(torch, "accelerator"))
    put(torch._C, "_get_accelerator", get_accelerator)
    wrap(torch._C, "_show_config", _show_config)
    put(torch._C, "_has_cuda", True, create=True)
    for name, value in {"_cudart": Cudart, "_is_in_bad_fork": is_in_bad_fork, "_device_count_nvml": _visible_devices}.items():
        put(torch.cuda, name, value)
    for name in ("_exchange_device", "_maybe_exchange_device"):
        put(torch.cuda, name, exchange_device)
    put(torch, "device", device(Device))
    _streams.install()
    _refusals()


_EAGERLY = "run it eagerly here, and on a GPU as it is"
_COLLECTIVES = "_scatter _scatter_out _gather _gather_out _broadcast _broadcast_out _broadcast_coalesced".split()


def _refusals() -> None:
    """What cannot be pretended says so, instead of failing somewhere inside."""
    for kind in (getattr(torch.cuda, name, None) for name in ("CUDAGraph", "graph", "MemPool")):
        if kind is not None:  # the class stays: programs ask isinstance
            put(kind, "__new__", staticmethod(_refuse(f"torch.cuda.{kind.__name__}", _EAGERLY)))
    put(torch.cuda.CUDAGraph, "replay", _refuse("torch.cuda.CUDAGraph.replay", _EAGERLY))  # of one that was captured before a fork
    put(torch.cuda, "make_graphed_callables", _refuse("torch.cuda.make_graphed_callables", _EAGERLY))
    for name in _COLLECTIVES:
        put(torch._C, name, _refuse("DataParallel", "use one device here, or DistributedDataParallel with the backend 'gloo'"), create=True)
    put(torch.cuda.graphs, "_cuda_isCurrentStreamCapturing", _always(False))
    put(torch.cuda, "_compile_kernel", _refuse("torch.cuda._compile_kernel", _KERNELS))
