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
    """Whether a tensor is the only one on its storage, and no element of it is there twice (pinning and copying refuse those)."""
    counts = collections.Counter(key(tensor) for tensor in tensors)
    return [counts[key(tensor)] == 1 and not torch._debug_has_internal_overlap(tensor) for tensor in tensors]


def key(tensor: Tensor) -> int:
    """Which storage a tensor is on."""
    with torch._C.DisableTorchFunctionSubclass():
        return torch._C.TensorBase.untyped_storage(tensor).data_ptr() or id(tensor)  # empty storages share no memory, though they share an address


def _view(tensor: Tensor, whole: dict[int, Tensor], move: Move) -> Tensor:
    address = key(tensor)
    if address not in whole:
        whole[address] = move(flat(tensor))
    return view(whole[address], tensor.dtype, tensor.shape, tensor.stride(), int(tensor.storage_offset()))


def view(storage: Tensor, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """A tensor on a storage that is given as bytes."""
    size = torch.empty(0, dtype=dtype, device="meta").element_size()
    typed = storage[: storage.numel() // size * size].view(dtype)
    return typed.as_strided(shape, stride, offset).detach()


def flat(tensor: Tensor) -> Tensor:
    """The whole storage of a tensor, as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
