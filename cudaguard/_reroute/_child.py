"""The worker: the shadow takes CUDA's place where CUDA cannot work, and outputs with CUDA data in them leave as parcels."""

from __future__ import annotations

import functools
import inspect
import pickle
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

import torch

from .. import _config, _driver, _places, _respond, _shadow, _worker
from .._hooks import _notice
from .._hooks.cuda import INITIALISERS
from .._journal import INITIALISED
from .._respond import safe
from .._shadow._patch import replaced
from .._verdict import Finding
from . import Uncollected, _adopt, _compiled, _delivery, _note, _parcel, _plan, _snapshot
from ._delivery import News
from ._meter import Heavy, Meter
from ._note import Notes
from ._policy import Rerouted

notes = Notes()
meter = Meter()
_begun = False
LOOPS = (_worker.TORCH.module, _worker.STATEFUL.module)  # where a worker's own loop makes its fetcher, and again when it is resumed


@safe(None)
def enter() -> None:
    """Called in a worker before its loop runs, if its loader is rerouted."""
    with Uncollected():
        begin(_plan.current())
    kind: Any = torch.utils.data._DatasetKind
    original = kind.create_fetcher

    def create_fetcher(*args: Any, **kwargs: Any) -> Any:
        fetcher = original(*args, **kwargs)
        if sys._getframe(1).f_globals.get("__name__") in LOOPS:  # a loader inside the dataset makes fetchers too: what they give is for the worker
            fetcher.fetch = _packing(fetcher.fetch)
        return fetcher

    kind.create_fetcher = staticmethod(create_fetcher)


def begin(plan: _plan.Plan | None) -> None:
    """Let the shadow answer here, if this process was forked while CUDA was up. Once a process."""
    global _begun
    if _begun:
        return
    _begun = True
    _config.use(_config.current()._replace(mode="reroute"))
    if _notice.bad() is not None:
        snapshot = plan.snapshot if plan is not None and plan.snapshot is not None else _snapshot.take()
        copies, over = (plan.copies, plan.over) if plan is not None else ([], None)
        _stand_in(snapshot, None if over is None else functools.partial(_note.beyond, over))
        _adopt.withhold(over.data.values() if over is not None else ())
        _adopt.adopt(copies)
        notes.used = bool(copies or over)  # they may be returned as they are


def _stand_in(snapshot: _snapshot.Snapshot, beyond: Callable[[str], BaseException | None] | None) -> None:
    """The shadow, as in a process that has not touched CUDA yet: torch's own lazy initialisation runs on it at the first touch."""
    fresh, default = not _shadow.state.installed, _default_device()
    _shadow.install(Rerouted(snapshot, notes.noted, _note.refused, beyond))
    _compiled.watch(_note.refused)
    torch.cuda._initialized = False
    torch.cuda._queued_calls.clear()  # the parent's
    for holder, name in INITIALISERS:  # the guard's own would raise at the first touch
        if hasattr(sys.modules.get(holder), name):
            setattr(sys.modules[holder], name, inspect.unwrap(getattr(sys.modules[holder], name)))
    if fresh:
        _rebind()
    if fresh and default:
        torch.set_default_tensor_type(default)


def _default_device() -> str | None:
    """torch.set_default_tensor_type(torch.cuda...) is kept in C++, which no patch of a Python function reaches."""
    if not str(torch._C._get_default_device()).startswith("cuda"):
        return None
    kind = {torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16"}[torch.get_default_dtype()]
    torch.set_default_tensor_type(f"torch.{kind}Tensor")
    return f"torch.cuda.{kind}Tensor"


def _rebind() -> None:
    """`from torch import zeros` in a module keeps torch's own function: let it name what stands for it here."""
    for name, module in list(sys.modules.items()):
        if name == "torch" or name.startswith(("torch.", "cudaguard")) or not isinstance(module, types.ModuleType):
            continue
        if replaced.keys().isdisjoint(map(id, vars(module).values())):  # so it is for nearly all, and a loop in Python takes twice as long
            continue
        for attribute, value in list(vars(module).items()):
            found = replaced.get(id(value))
            if found is not None and found[0] is value:
                setattr(module, attribute, found[1])


def _packing(fetch: Callable[..., Any]) -> Callable[..., Any]:
    """What is fetched, packed. Only where the CPU takes the GPU's place is there work to measure."""
    measured = functools.partial(meter.fetch, fetch) if _notice.bad() is not None else fetch

    @functools.wraps(fetch)
    def packed(*args: Any) -> Any:
        return _packed(measured(*args))

    return packed


def _packed(data: Any) -> Any:
    """The output as it should cross. What cannot be pickled goes on as it is: the queue's own hook says why."""
    if not (_used() or _parcel.any_fragile(data)):
        return data
    try:
        parcel = _parcel.pack(data)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError) as error:
        _own(error)
        return data
    return _labelled(data, parcel)


@safe(None)
def _own(error: Exception) -> None:
    """An error of the guard's own is no fault of the output's."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    if _places.kind(last.filename) == _places.GUARD and not isinstance(error, pickle.PicklingError):
        raise error


def _used() -> bool:
    """Whether anything can be on a GPU in this worker: a worker that stays on the CPU pays for this question alone."""
    if _begun and _notice.bad() is not None:
        return notes.used
    return torch.cuda.is_initialized() or _driver.up()  # type: ignore[no-untyped-call]


def _labelled(data: Any, parcel: Any) -> Any:
    places, news = _told(0 if parcel is None else parcel.size())
    if parcel is not None:
        parcel.places, data = places, parcel
    return _delivery.Noted(data, news) if news.first or news.heavy else data


@safe(((), News([], [])))
def _told(size: int) -> tuple[tuple[_delivery.Place, ...], News]:
    """The lines of this batch, and what the parent should hear of for the first time."""
    if size and not notes.known:
        notes.placed() if _notice.bad() is not None else _healthy()
    places, new = notes.taken()
    bad, found = _notice.bad() is not None, meter.heavy()
    first, heavy = _heard([_weighed(finding, found) for finding in new]), _heard([_note.heavy(*line) for line in found])
    return places, News(
        [(finding.as_dict(), _delivery.line(finding, size) if bad else "") for finding in first],
        [(finding.as_dict(), _delivery.heavy_line(finding)) for finding in heavy],
    )


def _weighed(finding: Finding, found: list[Heavy]) -> Finding:
    """A line that is new and heavy at once: a place has one finding, so that says both."""
    here = finding.touch.site if finding.touch else None
    more = next((heavy.message for heavy in found if here and heavy.site[:2] == here[:2]), "")
    return finding._replace(message=f"{finding.message}; {more}") if more else finding


def _heard(new: list[Finding]) -> list[Finding]:
    """Report findings; those that the user asked not to hear of end here."""
    for finding in new:
        _respond.respond(finding)
    return [finding for finding in new if not _respond.silenced(finding)]


def _healthy() -> None:
    """A worker with a GPU of its own: the line is the one that initialised CUDA here."""
    book = _notice.journal()
    step = next((s for s in book.steps if s.pid == book.pid and s.tier == INITIALISED), None)
    site = step.site if step else _notice.site()
    notes.add(site, "fork-after-init", step.call if step else "")
