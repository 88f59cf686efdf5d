"""What the parent prepares before the workers of one iterator start. A forked worker finds it in its memory."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from .._hooks import _notice
from .._respond import safe
from . import _copies, _held, _memory, _snapshot
from ._copies import Copy, Over
from ._held import Held
from ._snapshot import Snapshot

_current = threading.local()  # by thread: two threads may each be making an iterator; a fork keeps the forking thread's


class Plan:
    """For the workers of one iterator: what is known of the GPUs, and CPU copies of the GPU data they inherit."""

    def __init__(self, snapshot: Snapshot | None, found: list[Held] | None = None) -> None:
        self.snapshot = snapshot
        self.copies: list[Copy] = []
        self.over: Over | None = None
        self._sharing = Counter(_memory.key(h.data) for h in found or () if _copies.dense(h.data))
        self._sent: dict[Any, tuple[Any, torch.Tensor]] = {}

    def alone(self, key: int) -> bool:
        """Whether no two tensors that were found share this storage."""
        return self._sharing[key] <= 1

    def spared(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is part of what is too much to be copied."""
        return self.over is not None and id(tensor) in self.over.data

    def on_cpu(self, key: Any, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the CPU, made once for all workers. `key` is the tensor it is for, or the address of a storage."""
        name = key if isinstance(key, int) else id(key)
        if name not in self._sent:
            self._sent[name] = key, tensor.to("cpu", copy=True)
        return self._sent[name][1]


def current() -> Plan | None:
    """The plan of the iterator that this thread is making; in a forked worker, the plan that it was made by."""
    return getattr(_current, "plan", None)


@contextlib.contextmanager
def making(plan: Plan) -> Iterator[None]:
    """While the workers are started."""
    outer, _current.plan = current(), plan
    try:
        yield
    finally:
        _current.plan = outer


@safe(Plan(None))
def prepare(loader: Any, rest: tuple[Any, ...] = ()) -> Plan:
    """Look at what the workers will need: the loader's objects, and what else its iterator is made of, a state to go on from.

    Wakes nothing: if CUDA is down, the workers are healthy and need nothing.
    """
    if _notice.bad() is not None or not _notice.woken():
        return Plan(None)
    from .._shadow import _parts  # noqa: F401  # loaded once here, not in every worker

    found = _search(loader, rest)
    plan = Plan(_snapshot.take(), found)
    within, plan.over = _copies.within(found)
    if _method(loader) == "fork":
        plan.copies = _copies.make(within)
    return plan


def _search(loader: Any, rest: tuple[Any, ...]) -> list[Held]:
    roots = {"dataset": loader.dataset, "collate_fn": loader.collate_fn, "worker_init_fn": loader.worker_init_fn, "state": rest}
    return _held.find(roots)


def _method(loader: Any) -> str:
    context = loader.multiprocessing_context
    return str((torch.multiprocessing if context is None else context).get_start_method())
