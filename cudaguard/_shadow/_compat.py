"""What else in torch looks at a function or class by identity, and must be told what stands for what."""

from __future__ import annotations

from typing import Any

import torch

from cudaguard._shadow._classes import Shadow
from cudaguard._shadow._devices import arrive_raw
from cudaguard._shadow._errors import not_simulated
from cudaguard._shadow._mixing import leaves
from cudaguard._shadow._patch import put, wrap
from cudaguard._shadow._state import state


def _builtin(original: Any) -> Any:
    def find(function: Any) -> Any:
        found = original(function)
        return found if found is not None or not hasattr(function, "__wrapped__") else original(function.__wrapped__)

    return find


def _uncompiled(original: Any) -> Any:
    def compile_(model: Any = None, **kwargs: Any) -> Any:
        return state.policy.compile(original, model, kwargs)

    return compile_


def _scripted(original: Any) -> Any:
    """A function of ``torch.jit.script``: unlike a scripted module's methods, torch does not announce it to the tensors it is given."""

    def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        kinds: dict[Any, None] = {type(leaf): None for leaf in leaves((*args, kwargs)) if isinstance(leaf, Shadow)}
        if not kinds:
            return original(self, *args, **kwargs)

        def call(*args: Any, **kwargs: Any) -> Any:
            return original(self, *args, **kwargs)

        call.__name__ = self.name
        return next(iter(kinds)).__torch_function__(call, tuple(kinds), args, kwargs)

    return __call__


def _script_loaded(original: Any) -> Any:
    """A script module's storages are read in C++, past all that stands for CUDA: read them on the CPU, then move the module."""

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        place = arrive_raw(map_location, "torch.jit.load")
        if place is None:
            return original(f, map_location, *args, **kwargs)
        return original(f, "cpu", *args, **kwargs).to(torch.device("cuda", place))

    return load


def _no_nccl(original: Any) -> Any:
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(backend, str) and "nccl" in backend.lower():
            raise not_simulated("An NCCL process group", "use the backend 'gloo' here, and NCCL on a GPU")
        return original(backend, *args, **kwargs)

    return init_process_group


class Nvtx:
    """Marks for a profiler that is not there."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: 0


def install() -> None:
    # A CPU build has no cuDNN and warns when an RNN asks about a CUDA tensor.
    put(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    wrap(torch.jit._builtins, "_find_builtin", _builtin)
    wrap(torch, "compile", _uncompiled)
    wrap(torch.jit.ScriptFunction, "__call__", _scripted)
    wrap(torch.jit, "load", _script_loaded)
    put(torch.cuda.nvtx, "_nvtx", Nvtx())
    distributed = getattr(torch, "distributed", None)
    for owner in (distributed, getattr(distributed, "distributed_c10d", None)):
        if owner is not None:
            wrap(owner, "init_process_group", _no_nccl)
