"""Copies of the GPU data that a loader's workers will inherit, made in the parent, before they start."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import torch

from .. import _config
from . import _memory
from ._delivery import human
from ._held import Held
from ._reduce import detached, rebuild_compressed, rebuild_nested, rebuild_sparse, wraps

Tensor = torch.Tensor


class Copy(NamedTuple):
    """Inherited data, and CPU data to give to it. None where its parts are inherited data of their own."""

    held: Held
    cpu: Any


def make(found: list[Held]) -> list[Copy]:
    """A copy of each, sharing memory where the originals do.

    Made anew for every iterator: `tensor._version` counts no write through `.data`, which is how moving averages and loaded weights are
    written, and nothing else tells cheaply whether GPU memory still holds what an earlier copy has. It costs the way over the bus
    (some tenths of a second a GB, about 10 us a tensor), each epoch, of what is held; no buffer is kept between epochs for it.
    """
    plain = [held.data for held in found if dense(held.data)]
    copies = _memory.moved([detached(tensor) for tensor in plain], _to_cpu)
    known = {id(tensor): cpu for tensor, cpu in zip(plain, copies, strict=True)}
    return [Copy(held, known[id(held.data)] if id(held.data) in known else _other(held.data)) for held in found]


def _to_cpu(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", copy=True)


def dense(data: Any) -> bool:
    """Whether something is a tensor that is plain data on one storage."""
    return isinstance(data, Tensor) and not wraps(data) and data.layout is torch.strided and not data.is_nested


def _other(data: Any) -> Any:
    """A copy of what is no dense tensor. A generator's is its seed; streams and events have nothing to copy."""
    if not isinstance(data, Tensor):
        return data.initial_seed() if isinstance(data, torch._C.Generator) else None
    if wraps(data):
        return None
    plain = detached(data)
    if plain.is_nested:
        parts = (plain._nested_tensor_size(), plain._nested_tensor_strides(), plain._nested_tensor_storage_offsets())
        return rebuild_nested(_to_cpu(plain.values()), *parts)
    if plain.layout is torch.sparse_coo:
        return rebuild_sparse(_to_cpu(plain._indices()), _to_cpu(plain._values()), tuple(plain.shape), plain.is_coalesced())
    return _compressed(plain)


def _compressed(plain: Tensor) -> Tensor:
    by_row = plain.layout in (torch.sparse_csr, torch.sparse_bsr)
    outer, inner = (plain.crow_indices(), plain.col_indices()) if by_row else (plain.ccol_indices(), plain.row_indices())
    return rebuild_compressed(_to_cpu(outer), _to_cpu(inner), _to_cpu(plain.values()), tuple(plain.shape), plain.layout)


class Over(NamedTuple):
    """Held data that is more than may be copied: what is said of it where a worker uses it, and its largest part."""

    said: str
    path: str
    data: dict[int, Tensor]  # by id


def within(found: list[Held]) -> tuple[list[Held], Over | None]:
    """What may be copied, the smallest first, and the rest: a dataset may reach a large model and never use it, so nothing is wrong yet."""
    sizes = {_memory.key(t): (_size(t), held.path) for held in found if dense(t := held.data)}
    total, room = sum(size for size, _ in sizes.values()), _config.current().copy_limit
    if total <= room:
        return found, None
    size, path = max(sizes.values())
    said = _said(total, room, size, readable(path))
    for key, (size, _) in sorted(sizes.items(), key=lambda item: item[1][0]):
        room -= size
        if room >= 0:
            del sizes[key]
    over = {id(t): t for held in found if dense(t := held.data) and _memory.key(t) in sizes}
    return [held for held in found if id(held.data) not in over], Over(said, readable(path), over)


def _said(total: int, limit: int, largest: int, path: str) -> str:
    return (
        f"the workers' dataset holds {human(total)} of GPU data, more than rerouting may copy (CUDAGUARD_COPY_LIMIT is {human(limit)}); "
        f"{path} alone is {human(largest)}"
    )


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def readable(path: str) -> str:
    """A module's parameters as a user writes them: net.weight, not net._parameters['weight']."""
    return re.sub(r"\._(?:parameters|buffers|modules)\['(\w+)'\]", r".\1", path)
