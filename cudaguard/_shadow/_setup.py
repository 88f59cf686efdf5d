"""Fills the dispatcher's tables."""

from __future__ import annotations

from typing import Any

import torch

from cudaguard._shadow import _dispatch, _mixing, _tables
from cudaguard._shadow._classes import Shadow, Tensor, place_of
from cudaguard._shadow._errors import not_beside, two_devices


def install() -> None:
    passive = [*_tables.getters(_tables.PASSIVE_PROPERTIES), *_tables.methods(_tables.PASSIVE_METHODS)]
    passive += _tables.packed(_tables.PASSIVE_FUNCTIONS)
    _dispatch.passive.update(passive)
    _dispatch.special.update(dict.fromkeys(passive, _dispatch.read))
    _dispatch.special.update(dict.fromkeys([*_tables.methods(_tables.CPU_RESULT), *_tables.packed(_tables.CPU_RESULT)], _dispatch.read))
    _dispatch.views.update([*_tables.methods(_tables.VIEWS), *_tables.packed(_tables.VIEWS), *_tables.getters(_tables.VIEW_PROPERTIES)])
    _dispatch.lazy.update(_tables.methods(_tables.LAZY))
    _mixing.free.update([*_tables.methods(_tables.FREE), *_tables.packed(_tables.FREE)])
    _dispatch.special.update(dict.fromkeys(_tables.packed(_tables.RECURRENT), _recurrent))
    _dispatch.special[Tensor.__getitem__] = _get_item
    _dispatch.special[Tensor.__setitem__] = _set_item
    _dispatch.special[Tensor.copy_] = _copy_
    _dispatch.special[Tensor.__deepcopy__] = _deepcopy
    _dispatch.special.update(dict.fromkeys(_tables.packed(["_pack_padded_sequence", "_pad_packed_sequence"]), _first_only))


def _get_item(cls: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _check_index(*args)
    return _dispatch.ordinary(args[0].__class__, func, types, args, kwargs)


def _check_index(target: Any, index: Any) -> None:
    """An index may be on the CPU or where the tensor is."""
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, Shadow) and place_of(target) != part._place:
            raise RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor ({target.device})")


def _deepcopy(cls: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch copies a sparse tensor by clone() and insists that this gives the very class, which it gets only from dispatch."""
    self, memo = args
    if self.layout is torch.strided or not self.is_leaf:
        return _dispatch.ordinary(cls, func, types, args, kwargs)
    if id(self) not in memo:
        memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
    return memo[id(self)]


def _set_item(cls: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target, index, value = args
    _check_index(target, index)
    gathers = isinstance(index, Tensor) or (isinstance(index, tuple) and any(isinstance(part, Tensor) for part in index))
    if gathers and isinstance(value, Tensor) and value.dim() and value.device != target.device:
        raise two_devices(target.device, value.device)
    return _dispatch.run(func, types, args, kwargs)


def _copy_(cls: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _dispatch.run(func, types, args, kwargs)  # the one operation that goes from any device to any other
    return args[0]


def _recurrent(cls: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(input, hidden, parameters, …), or with the sizes of a packed sequence second, which stay on the CPU."""
    at = 3 if isinstance(args[3], (list, tuple)) else 2
    for name, tensors in (("hidden", args[at - 1]), ("parameter", args[at])):
        for tensor in [tensors] if isinstance(tensors, Tensor) else tensors:
            if _mixing.elsewhere(tensor, args[0]):
                raise not_beside(name, args[0].device, tensor.device)
    return _dispatch.ordinary(cls, func, types, args, kwargs)


def _first_only(cls: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Packed sequences: the data is on the device, the sizes beside it stay on the CPU."""
    data, sizes = _dispatch.run(func, types, args, kwargs)
    data.__class__ = cls._plain
    return data, sizes
