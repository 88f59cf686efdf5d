"""Tensors of two devices in one call: refuse as PyTorch does, and allow what it allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from cudaguard._shadow import _checked
from cudaguard._shadow._classes import Shadow, Tensor, class_for, place_of
from cudaguard._shadow._errors import two_devices

free: set[Any] = set()  # calls that may mix (copy_, indexing with a CPU index, …), filled by _tables


def check(cls: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise if the tensors of a call live on different devices. CPU tensors without dimensions may join any device."""
    place = cls._place
    for found in leaves((args, kwargs) if kwargs else args):
        if isinstance(found, Shadow):
            if found._place == place:
                continue
        elif type(found) not in _PLAIN or found.is_meta:
            continue
        if func in free or _adopted(found, place):
            continue
        worded = _checked.refusal(getattr(func, "__name__", ""), args, kwargs)
        if worded is not None:
            raise worded
        if isinstance(found, Shadow) or found.dim():
            raise _two(cls._device, found, args)


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


def elsewhere(value: Any, owner: Any) -> bool:
    """Is a tensor with dimensions on another device than `owner`, as far as anybody can say?"""
    place = place_of(owner)
    if place_of(value) == place or not value.dim() or not all(isinstance(one, (*_PLAIN, Shadow)) for one in (value, owner)):
        return False
    return place is None or not _adopted(value, place)


_functorch = getattr(torch._C, "_functorch", None)
_wrapped = getattr(_functorch, "is_functorch_wrapped_tensor", lambda found: False)


def _two(device: torch.device, found: Any, args: tuple[Any, ...]) -> RuntimeError:
    other = found.device
    if isinstance(found, Shadow) and args and isinstance(args[0], Shadow):
        return two_devices(args[0]._device, other if args[0] is not found else device)
    return two_devices(device, other)
