"""Operators of extensions that have a CUDA kernel and no CPU kernel.

A kernel written in Python computes the same on CPU data, so it becomes the CPU kernel too, for shadows alone. That keeps its autograd
formula in force, which calling the kernel directly would skip. A compiled kernel would read CPU addresses as a GPU's, so it is refused.
"""

from __future__ import annotations

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


def _serve(name: str) -> None:
    space, _, rest = name.partition("::")
    packet = getattr(getattr(torch.ops, space), rest.partition(".")[0])
    overload = getattr(packet, rest.partition(".")[2] or "default")
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(leaf, Shadow) for leaf in leaves((args, kwargs))):
            raise NotImplementedError(f"Could not run '{name}' with arguments from the 'CPU' backend.")
        if not state.policy.kernel(name):
            raise NotImplementedError(f"'{name}' has only a CUDA kernel.")
        return overload.redispatch(key, *args, **kwargs)

    library = _libraries.setdefault(space, _library.Library(space, "IMPL"))
    library.impl(rest, kernel, "CPU")
