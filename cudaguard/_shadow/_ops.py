"""Operators of extensions that have a CUDA kernel and no CPU kernel."""

from __future__ import annotations

from typing import Any

import torch

from cudaguard._shadow import _dispatch
from cudaguard._shadow._classes import tag_all
from cudaguard._shadow._state import state

_has = torch._C._dispatch_has_kernel_for_dispatch_key
_GENERAL = ("CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def only_cuda(func: Any) -> Any:
    """The overload to run with the CUDA key, or None if the operator has another kernel (or no CUDA kernel either)."""
    overload = getattr(func, "default", func) if hasattr(func, "overloads") else func
    name = overload.name()
    if any(_has(name, key) for key in _GENERAL) or not _has(name, "CUDA"):
        return None
    return overload


def call(cls: Any, func: Any, types: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the kernel that was registered for CUDA on the CPU data, if the policy allows."""
    overload = only_cuda(func)
    if overload is None:
        return _dispatch.ordinary(cls, func, types, args, kwargs)
    if not state.policy.kernel(overload.name()):
        raise NotImplementedError(f"Could not run '{overload.name()}' with arguments from the 'CPU' backend.")
    with torch._C.DisableTorchFunctionSubclass():
        result = overload.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA), *args, **kwargs)
    return tag_all(result, cls._place)
