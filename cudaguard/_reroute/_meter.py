"""How much of a rerouted worker's time goes into GPU work that runs on the CPU there, and at which lines.

Measured in batches 1, 2, 4, 8, … of a worker alone, by a slower dispatcher that takes the place of the shadow's meanwhile: timing every
call of every batch would cost what it looks for. Data on its way (moves, factories, stacking) is no work: it is the same without a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from types import FrameType
from typing import Any, NamedTuple

import torch

from .._hooks import _notice
from .._places import Site
from .._respond import safe
from .._shadow import _dispatch, _tables
from .._shadow._tensor import ShadowTensor
from . import _note
from ._delivery import Place

# Below a fifth, doing the work elsewhere makes the workers at most 1.25 times as fast; below 5 ms a batch nobody waits for it.
SHARE, SECONDS = 0.2, 0.005
# One batch may be unlucky, and a first one pays for what is done once: either counts alone only if it worked longer than any of that takes.
SURE = 1.0
MOST = 5000  # calls that are timed in a batch: what comes after them runs as usual and counts as no work, so a share is never too high
PLACED = 0.001  # seconds at a line before its whole stack is looked at
DATA = """clone contiguous copy_ __setitem__ stack cat concat concatenate hstack vstack dstack column_stack pad_sequence empty_like zeros_like
ones_like full_like rand_like randn_like randint_like new_tensor new_empty new_zeros new_ones new_full new_empty_strided item tolist __bool__
__float__ __int__ __index__ __deepcopy__ pin_memory""".split()
BACKWARD: Callable[..., Any] = ShadowTensor.backward


class Heavy(NamedTuple):
    """A line whose work takes a good part of a worker's time."""

    site: Site
    call: str
    message: str


class Work:
    """What one line's calls took, in seconds: together, and by name."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls: dict[str, tuple[float, Any]] = {}
        self.site: Site | None = None

    def add(self, call: Any, seconds: float) -> None:
        """One call took so long."""
        name = getattr(call, "__name__", None) or str(call)
        self.seconds += seconds
        self.calls[name] = self.calls.get(name, (0.0, None))[0] + seconds, call
        if self.site is None and self.seconds >= PLACED:
            self.site = _notice.site()

    def names(self) -> list[str]:
        """The calls, the longest first."""
        return [named(call) for _, call in sorted(self.calls.values(), key=lambda row: -row[0])]


class Meter:
    """One worker's measure."""

    def __init__(self) -> None:
        self._fetches = 0
        self._told: set[Place] = set()
        self._fresh = self._inside = False
        self._data: frozenset[Any] = frozenset()
        self._left = 0
        self._anew()

    def _anew(self) -> None:
        self._lines: dict[Place, Work] = {}
        self._batches, self._seconds = 0, 0.0

    def fetch(self, fetch: Callable[..., Any], *args: Any) -> Any:
        """Fetch a batch, and measure it if it is its turn."""
        self._fetches += 1
        if self._fetches & (self._fetches - 1):
            return fetch(*args)
        if self._fetches == 2:
            self._anew()
        self._left = MOST
        start = perf_counter()
        _dispatching(self._timed(_dispatch.dispatch, lambda args: args[1]), self._timed(BACKWARD, lambda args: torch.Tensor.backward))
        try:
            return fetch(*args)
        finally:
            _as_usual()
            self._seconds += perf_counter() - start
            self._batches, self._fresh = self._batches + 1, True

    def _timed(self, original: Callable[..., Any], what: Callable[[tuple[Any, ...]], Any]) -> Callable[..., Any]:
        self._data = self._data or not_work()

        def timed(*args: Any, **kwargs: Any) -> Any:
            call, self._left = what(args), self._left - 1
            if self._left < 0:
                _as_usual()
            if self._inside or call in self._data:  # a handler that dispatches again is one call
                return original(*args, **kwargs)
            self._inside, start = True, perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._charge(call, perf_counter() - start, sys._getframe(1))
                self._inside = False

        return timed

    @safe(None)
    def _charge(self, call: Any, seconds: float, frame: FrameType) -> None:
        place = _note.line(frame)
        if place is not None:  # else it is torch's own, its collate_fn's
            self._lines.setdefault(place, Work()).add(call, seconds)

    def heavy(self) -> list[Heavy]:
        """What the last batch showed, each line once."""
        fresh, self._fresh = self._fresh, False
        work = sum(line.seconds for line in self._lines.values())
        if not fresh or (self._batches < 2 and work < SURE) or work < max(SHARE * self._seconds, SECONDS * self._batches):
            return []
        alone = {place: line.seconds for place, line in self._lines.items() if line.seconds >= SHARE * self._seconds}
        if not alone and not self._told:  # spread over many lines: the longest stands for all
            alone = {max(self._lines, key=lambda place: self._lines[place].seconds): work}
        return [self._heavy(place, seconds) for place, seconds in alone.items() if place not in self._told and self._lines[place].site]

    def _heavy(self, place: Place, seconds: float) -> Heavy:
        self._told.add(place)
        line = self._lines[place]
        names, site = line.names(), line.site
        assert site is not None
        share = f"{100 * seconds / self._seconds:.0f} % of the workers' time goes into GPU work that runs on the CPU there"
        here = "" if seconds == line.seconds else ", most of it here"
        calls = ", ".join(names[:2]) + (", ..." if len(names) > 2 else "")
        took = f"{1000 * seconds / self._batches:.0f} of {1000 * self._seconds / self._batches:.0f} ms a batch"
        return Heavy(site, names[0], f"{share}{here} ({calls}; {took})")


def _dispatching(dispatch: Callable[..., Any], backward: Callable[..., Any]) -> None:
    """Every call on a shadow goes here, in all threads; `backward` goes to no dispatcher."""
    kind: Any = ShadowTensor
    kind.__torch_function__, kind.backward = classmethod(dispatch), backward


def _as_usual() -> None:
    _dispatching(_dispatch.dispatch, BACKWARD)


@safe(frozenset())
def not_work() -> frozenset[Any]:
    """The calls that compute nothing."""
    named_so = [*_tables.methods(DATA), *_tables.packed(DATA), *_tables.methods(DATA, torch._C._nn)]
    return frozenset((*_dispatch.passive, *_dispatch.views, *named_so))


OWNERS = (("torch.nn.functional", torch.nn.functional), ("torch", torch), ("torch.Tensor", torch.Tensor))


def named(call: Any) -> str:
    """A call as a user would write it."""
    name = getattr(call, "__name__", "")
    if isinstance(call, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return f"torch.ops.{call}"
    for prefix, owner in OWNERS:
        if getattr(owner, name, None) == call:
            return f"{prefix}.{name}"
    space, _, rest = name.partition("_")
    if space in ("linalg", "fft", "special") and rest:
        return f"torch.{space}.{rest}"
    module = getattr(call, "__module__", None) or ""
    return f"{module}.{name}" if name and module.startswith("torch.") and "._" not in module else name or str(call)
