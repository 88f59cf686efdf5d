"""Hooks on the loaders: their workers run the guarded loop."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .. import _worker
from .._worker import STATEFUL, TORCH, Loop
from . import iterators
from ._patch import Patches

LOOPS: dict[Loop, Callable[..., None]] = {TORCH: _worker.torch_loop, STATEFUL: _worker.stateful_loop}


def install_torch(patches: Patches) -> None:
    """Guard torch's DataLoader."""
    _install(patches, TORCH)
    iterators.install(patches, "torch.utils.data.dataloader")
    iterators.install_luggage(patches)


def install_stateful(patches: Patches) -> None:
    """Guard torchdata's StatefulDataLoader."""
    _install(patches, STATEFUL)
    iterators.install(patches, STATEFUL.holder)


def _install(patches: Patches, loop: Loop) -> None:
    def replace(original: Any) -> Any:
        ours = LOOPS[loop]
        _worker.originals[loop] = original
        ours.__doc__ = original.__doc__
        ours.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        return ours

    patches.wrap(loop.holder, loop.name, replace)
