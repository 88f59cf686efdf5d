"""Hooks on the loaders' iterators: what rerouting prepares before the workers start, and what the parent makes of what they send.

Always there, since `cudaguard.reroute(loader)` may come at any time: a look at the mode for each iterator, at a type for each batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .. import _reroute
from . import _notice
from ._patch import Patches

# Where an iterator with workers is defined. The same two methods in each, with other arguments.
ITERATORS = (
    ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter"),
    ("torchdata.stateful_dataloader.stateful_dataloader", "_StatefulMultiProcessingDataLoaderIter"),
)


def install(patches: Patches, module: str) -> None:
    """Watch the iterators of a module that is loaded."""
    for holder, name in ITERATORS:
        if holder != module:
            continue
        kind = getattr(_notice.module(holder), name, None)
        for method, make in (("__init__", _preparing), ("_process_data", _delivering)):
            if hasattr(kind, method):
                patches.put(kind, method, make(getattr(kind, method)))
            else:
                patches.unwatched.append(f"{holder}.{name}.{method}")


def install_luggage(patches: Patches) -> None:
    """Watch what spawned workers are sent."""
    patches.wrap("multiprocessing.reduction", "dump", _packing)


def _packing(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def dump(obj: Any, file: Any, protocol: int | None = None) -> None:
        planning = _notice.module("cudaguard._reroute._plan")
        plan = None if planning is None else planning.current()
        if plan is None:
            return original(obj, file, protocol)
        from .._reroute import _luggage

        _luggage.dump(plan, obj, file, protocol)

    return dump


def _preparing(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        if not _reroute.wanted(loader):
            return original(self, loader, *args, **kwargs)
        with _reroute.Uncollected():
            from .._reroute import _child, _plan  # noqa: F401  # _child here, once: a forked worker would load it anew, and each one

            plan = _plan.prepare(loader, args)
        with _plan.making(plan):
            original(self, loader, *args, **kwargs)

    return __init__


def _delivering(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _process_data(self: Any, *args: Any, **kwargs: Any) -> Any:
        data = original(self, *args, **kwargs)
        return data.delivered() if isinstance(data, _reroute.Crossing) else data

    return _process_data
