"""Tensors of two devices in one call: refuse as PyTorch does, and allow what it allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from cudaguard._shadow._classes import Shadow, Tensor, class_for
from cudaguard._shadow._errors import two_devices

free: set[Any] = set()  # calls that may mix (copy_, indexing with a CPU index, …), filled by _tables


def check(cls: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise if the tensors of a call live on different devices. CPU tensors without dimensions may join any device."""
    place = cls._place
    for found in leaves((args, kwargs) if kwargs else args):
        if isinstance(found, Shadow):
            if found._place == place:  # type: ignore[unreachable]
                continue
        elif type(found) not in _PLAIN or found.dim() == 0 or found.is_meta:
            continue
        if func in free or _adopted(found, place):
            continue
        raise _refusal(func, cls._device, found, args)


_PLAIN = (Tensor, torch.nn.Parameter)


def leaves(value: Any) -> Iterator[Any]:
    """The tensors in arguments: lists and tuples inside count, as in torch.cat and the _foreach_ functions."""
    for item in value.values() if type(value) is dict else value:
        kind = type(item)
        if kind is list or kind is tuple or kind is dict:
            yield from leaves(item)
        elif issubclass(kind, Tensor):
            yield item


def _adopted(found: Any, place: int) -> bool:
    """Inside backward the engine hands out tensors of its own making, and torch.func wraps ours; both belong where the others are."""
    if type(found) is Tensor and (torch._C._current_graph_task_id() != -1 or _wrapped(found)):
        found.__class__ = class_for(Tensor, place)
        return True
    return False


_functorch = getattr(torch._C, "_functorch", None)
_wrapped = getattr(_functorch, "is_functorch_wrapped_tensor", lambda found: False)


def _refusal(func: Any, device: torch.device, found: Any, args: tuple[Any, ...]) -> RuntimeError:
    other = found._device if isinstance(found, Shadow) else found.device
    name = getattr(func, "__name__", "")
    if name in _WORDED:
        argument, method = _WORDED[name]
        return RuntimeError(
            f"Expected all tensors to be on the same device, but got {argument} is on {other}, different from other tensors on "
            f"{device} (when checking argument in method wrapper_CUDA_{method})"
        )
    if isinstance(found, Shadow) and args and isinstance(args[0], Shadow):
        return two_devices(args[0]._device, other if args[0] is not found else device)
    return two_devices(device, other)


# These are checked by a generated wrapper with a sentence of its own: name in Python -> (argument, method).
_WORDED = {"linear": ("mat1", "addmm"), "mm": ("mat2", "mm"), "matmul": ("mat2", "mm"), "cat": ("tensors", "cat"),
            "embedding": ("index", "_index_select")}  # fmt: skip
