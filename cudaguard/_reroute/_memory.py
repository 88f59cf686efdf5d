"""Move dense tensors between devices so that those which share memory still share it on the other side."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence

import torch

Tensor = torch.Tensor
Move = Callable[[Tensor], Tensor]


def moved(tensors: Sequence[Tensor], move: Move) -> list[Tensor]:
    """Each tensor as `move` gives it, views of one storage as views of one moved storage. `move` takes a dense tensor."""
    alone = _alone(tensors)
    whole: dict[int, Tensor] = {}
    return [move(tensor) if single else _view(tensor, whole, move) for tensor, single in zip(tensors, alone, strict=True)]


def _alone(tensors: Sequence[Tensor]) -> list[bool]:
    """Whether a tensor is the only one on its storage."""
    counts = collections.Counter(_key(tensor) for tensor in tensors)
    return [counts[_key(tensor)] == 1 for tensor in tensors]


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() or id(tensor)  # empty storages share no memory, though they share an address


def _view(tensor: Tensor, whole: dict[int, Tensor], move: Move) -> Tensor:
    key = _key(tensor)
    if key not in whole:
        whole[key] = move(flat(tensor))
    bytes_ = whole[key]
    size = tensor.element_size()
    typed = bytes_[: bytes_.numel() // size * size].view(tensor.dtype)
    return typed.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).detach()


def flat(tensor: Tensor) -> Tensor:
    """The whole storage of a tensor, as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
