"""Spawned workers: GPU data in what is pickled for them goes as CPU data and is rebuilt on its device, instead of by CUDA IPC."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from .. import _worker
from . import _memory
from ._parcel import land
from ._plan import Plan
from ._reduce import Rebuilt, detached, fragile, reduce
from ._snapshot import Snapshot

Tensor = torch.Tensor
LOOPS = {_worker.torch_loop: "torch_loop", _worker.stateful_loop: "stateful_loop"}


class Luggage(ForkingPickler):
    """Pickles a worker process. Its target goes first, so the worker knows what to do before its dataset is unpickled."""

    def __init__(self, plan: Plan, file: Any, protocol: int | None) -> None:
        super().__init__(file, protocol)
        self._plan = plan
        self._whole: dict[int, Rebuilt] = {}  # storages that several tensors share, by address

    def reducer_override(self, value: Any) -> Any:
        """Called by the pickler for everything that is no plain number, text or container."""
        if isinstance(value, Tensor):
            return reduce(value, self._leaf) if value.is_cuda or fragile(value) else NotImplemented
        if type(value) is _FUNCTION and value in LOOPS:
            return arrive, (LOOPS[value], self._plan.snapshot.portable() if self._plan.snapshot else None)
        return NotImplemented

    def _leaf(self, tensor: Tensor) -> Any:
        if not tensor.is_cuda or self._plan.spared(tensor):  # too much to copy: as without the guard, by CUDA IPC
            return NotImplemented
        index, plain = tensor.device.index, detached(tensor)
        key = _memory.key(plain)
        if self._plan.alone(key):
            return land, (self._plan.on_cpu(tensor, plain), index)
        if key not in self._whole:
            self._whole[key] = Rebuilt(land, (self._plan.on_cpu(key, _memory.flat(plain)), index))
        return _memory.view, (self._whole[key], tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


_FUNCTION = type(_worker.torch_loop)


def dump(plan: Plan, process: Any, file: Any, protocol: int | None = None) -> None:
    """What `multiprocessing.reduction.dump` does, for a worker of a rerouted loader."""
    Luggage(plan, file, protocol).dump(process)


def arrive(loop: str, snapshot: Snapshot | None) -> Any:
    """In the worker, before its arguments are unpickled: it is rerouted. Returns the loop to run."""
    from . import _child

    _child.begin(Plan(snapshot))
    return getattr(_worker, loop)
