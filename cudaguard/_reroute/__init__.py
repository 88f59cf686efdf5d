"""Reroute: in a worker that cannot use CUDA, what goes to the GPU stays on the CPU, and arrives on the GPU in the main process.

    parent   plan   → before the workers start: what is known of the GPUs, copies of the GPU data that the dataset holds
    worker   child  → the shadow answers in place of CUDA; outputs are packed into a parcel
    parent   parcel → opened in the main thread, after pinning; each leaf goes to its device

Importing this package loads none of that.
"""

from __future__ import annotations

import gc
import weakref
from types import TracebackType
from typing import TypeVar

from .. import _config

L = TypeVar("L")

marked: weakref.WeakSet[object] = weakref.WeakSet()  # loaders that are rerouted whatever the mode


class Crossing:
    """What a worker of a rerouted loader may send in place of an output."""

    __slots__ = ()

    def delivered(self) -> object:
        """The output, for the program. Called in the parent's main thread, after pinning."""
        raise NotImplementedError


class Uncollected:
    """While the guard makes many objects at once: no garbage collection, which walks all of torch's and takes longer than the work itself."""

    def __enter__(self) -> None:
        self._on = gc.isenabled()
        gc.disable()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._on:
            gc.enable()


def reroute(loader: L) -> L:
    """See :func:`cudaguard.reroute`."""
    if not all(hasattr(loader, name) for name in ("dataset", "collate_fn", "num_workers", "__iter__")):
        raise TypeError(f"reroute() takes a DataLoader, not {type(loader).__name__}")
    marked.add(loader)
    return loader


def wanted(loader: object) -> bool:
    """Whether the workers of this loader are to be rerouted."""
    mode = _config.current().mode
    return mode == "reroute" or (mode != "off" and loader in marked)
