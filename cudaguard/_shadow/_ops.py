"""Operators of extensions that have a CUDA kernel and no CPU kernel.

A kernel written in Python computes the same on CPU data, so it becomes the CPU kernel too, for shadows alone. That keeps its autograd
formula in force, which calling the kernel directly would skip. A compiled kernel would read CPU addresses as a GPU's, so it is refused.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch

from cudaguard._shadow._classes import Shadow, tag_all
from cudaguard._shadow._devices import CPU, arrive_raw
from cudaguard._shadow._errors import not_simulated
from cudaguard._shadow._mixing import leaves
from cudaguard._shadow._patch import wrap
from cudaguard._shadow._state import state

_ops: Any = torch._ops
_library: Any = torch.library
_has = torch._C._dispatch_has_kernel_for_dispatch_key
_copied: set[str] = set()  # the operators whose kernels are handed copies of their arguments, as torch 2.2 does: those are no shadows
_libraries: dict[str, Any] = {}  # a Library takes its kernels with it when it is collected
_INSTEAD = "it runs on a real GPU only; give the operator a CPU kernel, or leave this part out"


def adopt(func: Any, error: NotImplementedError) -> bool:
    """After an operator found no CPU kernel: make its CUDA kernel serve. False if there is none, so the error stands."""
    name = _overload(func)
    if name is None or not _has(name, "CUDA") or _has(name, "CPU"):
        return False
    if not state.policy.kernel(name):
        return False
    if not _in_python(name):
        raise not_simulated(f"The compiled CUDA kernel of {name}", _INSTEAD) from error
    _serve(name)
    return True


def _named(original: Any) -> Any:
    """``torch.ops.aten.zeros(…, device="cuda")``: an operator called by its name goes past torch's lazy initialisation."""

    def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        place = arrive_raw(kwargs["device"], f"torch.ops.{self}") if kwargs.get("device") is not None else None
        if place is None:
            return original(self, *args, **kwargs)
        kwargs["device"] = CPU
        with torch._C.DisableTorchFunctionSubclass():
            return tag_all(original(self, *args, **kwargs), place)

    return __call__


def install() -> None:
    for kind in (_ops.OpOverloadPacket, _ops.OpOverload):
        wrap(kind, "__call__", _named)


def _overload(func: Any) -> str | None:
    if isinstance(func, _ops.OpOverloadPacket):
        func = getattr(func, func.overloads()[0])
    return func.name() if isinstance(func, _ops.OpOverload) else None


def _in_python(name: str) -> bool:
    known: set[str] = getattr(torch.library, "_impls", set())
    space, _, rest = name.partition("::")
    return any(f"{space}/{spelled}/CUDA" in known for spelled in (rest, rest.removesuffix(".default"), f"{rest}.default"))


def _cuda_kernel(overload: Any) -> Callable[..., Any]:
    key = torch._C.DispatchKey.CUDA
    if hasattr(overload, "redispatch"):
        return functools.partial(overload.redispatch, torch._C.DispatchKeySet(key))
    return functools.partial(overload._op_dk, key)  # torch 2.2


def _serve(name: str) -> None:
    space, _, rest = name.partition("::")
    packet = getattr(getattr(torch.ops, space), rest.partition(".")[0])
    overload = getattr(packet, rest.partition(".")[2] or "default")
    run = _cuda_kernel(overload)
    calls = itertools.count()

    def kernel(*args: Any, **kwargs: Any) -> Any:
        shadows = any(isinstance(leaf, Shadow) for leaf in leaves((args, kwargs)))
        if not next(calls) and not shadows:  # the first call is the second attempt of one that had a shadow
            _copied.add(name)
        if not shadows and name not in _copied:
            raise NotImplementedError(f"Could not run '{name}' with arguments from the 'CPU' backend.")
        if not state.policy.kernel(name):
            raise NotImplementedError(f"'{name}' has only a CUDA kernel.")
        return run(*args, **kwargs)

    library = _libraries.setdefault(space, _library.Library(space, "IMPL"))
    library.impl(rest, kernel, "CPU")
