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
            if found._place == place:
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
    worded = _worded(getattr(func, "__name__", ""), args)
    if worded is not None:
        return worded
    other = _device(found)
    if isinstance(found, Shadow) and args and isinstance(args[0], Shadow):
        return two_devices(args[0]._device, other if args[0] is not found else device)
    return two_devices(device, other)


# These are checked by a generated wrapper with a sentence of its own:
# name in Python -> (the argument that is the odd one, the one before it, its name, the kernel)
_WORDED = {
    "linear": (0, 2, "mat1", "addmm"), "mm": (1, 0, "mat2", "mm"), "matmul": (1, 0, "mat2", "mm"), "__matmul__": (1, 0, "mat2", "mm"),
    "embedding": (0, 1, "index", "_index_select"),
}  # fmt: skip


def _worded(name: str, args: tuple[Any, ...]) -> RuntimeError | None:
    if name == "cat":
        first, *rest = args[0]
        odd, common, argument, kernel = next((t for t in rest if _device(t) != _device(first)), first), first, "tensors", "cat"
    elif name in _WORDED:
        at, before, argument, kernel = _WORDED["mm"] if name == "linear" and (len(args) < 3 or args[2] is None) else _WORDED[name]
        odd, common = args[at], args[before]
    else:
        return None
    if _device(odd) == _device(common):
        return None
    return RuntimeError(
        f"Expected all tensors to be on the same device, but got {argument} is on {_device(odd)}, different from other tensors on "
        f"{_device(common)} (when checking argument in method wrapper_CUDA_{kernel})"
    )


def _device(tensor: Any) -> torch.device:
    found: torch.device = tensor.device
    return found
