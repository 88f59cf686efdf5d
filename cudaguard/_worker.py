"""What a loader's worker process runs in place of torch's own loop.

A named function of this module, because multiprocessing pickles a target by name: a wrapt proxy does not pickle, and a
functools.wraps copy of torch's loop pickles as torch's and drops the guard under spawn and forkserver.
This module imports torch only inside a worker.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any, NamedTuple

from . import _config
from ._respond import safe


class Loop(NamedTuple):
    """A worker loop: where it is defined, and where loaders look it up."""

    module: str
    holder: str
    name: str = "_worker_loop"


TORCH = Loop("torch.utils.data._utils.worker", "torch.utils.data._utils.worker")
STATEFUL = Loop("torchdata.stateful_dataloader.worker", "torchdata.stateful_dataloader.stateful_dataloader")

originals: dict[Loop, Any] = {}  # what the hooks replaced, in this process


def torch_loop(*args: Any, **kwargs: Any) -> None:
    """The loop of torch's DataLoader, guarded."""
    _run(TORCH, args, kwargs)


def stateful_loop(*args: Any, **kwargs: Any) -> None:
    """The loop of torchdata's StatefulDataLoader, guarded."""
    _run(STATEFUL, args, kwargs)


def _run(loop: Loop, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    original = originals.get(loop) or getattr(importlib.import_module(loop.module), loop.name)
    _prepare(loop, original, args, kwargs)
    try:
        original(*args, **kwargs)
    except Exception as error:
        if not _handed_over(error, original, args, kwargs):
            raise


def _prepare(loop: Loop, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    from ._hooks import edges

    edges.enter_worker(loop.module, inspect.signature(original), args, kwargs)
    if _config.current().mode == "reroute" or "cudaguard._reroute._plan" in sys.modules:
        from ._reroute import _child

        _child.enter()


@safe(False)
def _handed_over(error: Exception, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the parent gets an exception that left the loop itself. torch would only tell it that the worker is gone."""
    from ._hooks import sending

    return sending.left(error, inspect.signature(original).bind(*args, **kwargs).arguments["data_queue"])
