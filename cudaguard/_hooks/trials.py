"""What `check` and `run --inline-workers` change in a program. Nothing of this is installed but for them.

They ask by private variables, so that children which start anew are changed too.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

from .. import _journal, _places, _trace
from ..errors import CudaGuardError
from . import _notice
from ._patch import Patches

STEPS = "_CUDAGUARD_STEPS"  # a number of batches: each loader's loop ends after them
INLINE = "_CUDAGUARD_INLINE"  # every loader works without workers
METHOD = "_CUDAGUARD_START_METHOD"  # where the program leaves it open

STOPPED, INLINED, BROKEN = "loader stopped", "loader inlined", "loader broken"
ITERATORS = ("_BaseDataLoaderIter", "_StatefulBaseDataLoaderIter")
LOADERS = ("DataLoader", "StatefulDataLoader")

_noted: set[tuple[object, ...]] = set()


def install_context(patches: Patches, module: str) -> None:
    """Change the default start method: as another system's or another Python's would be, so that the program may still choose."""
    wanted = os.environ.get(METHOD)
    default = getattr(_notice.module(module), "_default_context", None)
    if wanted and default is not None and default._actual_context is None:
        patches.put(default, "_default_context", default.get_context(wanted))


def install_loaders(patches: Patches, module: str) -> None:
    """Change the loaders of a module that is loaded."""
    steps, inline, holder = os.environ.get(STEPS), os.environ.get(INLINE), _notice.module(module)
    for kind in (vars(holder).get(name) for name in ITERATORS if steps):
        if kind is not None:
            patches.put(kind, "__next__", _ending(kind.__next__, int(steps or 0)))
    for kind in (vars(holder).get(name) for name in LOADERS if inline):
        if kind is not None and kind.__module__ == module:
            patches.put(kind, "__iter__", _inlining(kind.__iter__))


def _ending(original: Callable[..., Any], steps: int) -> Callable[..., Any]:
    """A loop over a loader ends normally: after so many batches, or where it would have failed with an error of ours, which is told already."""

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        if self._num_yielded >= steps > 0:
            _note(STOPPED, batches=steps)
            raise StopIteration
        try:
            return original(self)
        except CudaGuardError as error:
            if error.finding is None:
                raise
            _note(BROKEN)
            raise StopIteration from error

    return __next__


def _inlining(original: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(original)
    def __iter__(self: Any) -> Iterator[Any]:
        if self.num_workers > 0:
            _note(INLINED, num_workers=self.num_workers, tier=_journal.current.tier())
            # By __dict__: a loader refuses to have some of these changed, since its workers would not hear of it.
            self.__dict__.update(num_workers=0, timeout=0, persistent_workers=False, prefetch_factor=None)
        return original(self)

    return __iter__


def _note(name: str, **facts: object) -> None:
    """Note in the trace what was changed, once for each place."""
    site = _places.here(_journal.current.cut())
    if (name, site.file, site.line) not in _noted:
        _noted.add((name, site.file, site.line))
        _trace.noted(name, {**facts, **site.as_dict()})
