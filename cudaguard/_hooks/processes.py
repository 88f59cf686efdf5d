"""The edges of child processes: where an exception leaves a process, a pool's task or an executor's call.

Each is wrapped inside the child alone, in the moment it begins to run.
"""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from .. import _places
from .._respond import safe
from . import _chain, _notice
from ._explain import explain
from ._patch import Patches

# Every copy of multiprocessing: the standard one, the dill-based one of `datasets`, Celery's.
MODULES = ("multiprocessing.process", "multiprocess.process", "billiard.process")
# The names through which a pool's task hands its exception over, looked up when one was raised.
CARRIERS = (
    ("multiprocessing.pool", "ExceptionWithTraceback"),
    ("multiprocess.pool", "ExceptionWithTraceback"),
    ("concurrent.futures.process", "_ExceptionWithTraceback"),
)
# Targets that catch what their first argument raises, so that `run` never sees it.
CATCHING = (("torch.multiprocessing.spawn", "_wrap"),)


def install(patches: Patches, module: str) -> None:
    """Guard the processes of one copy of multiprocessing, which is loaded."""
    base = sys.modules[module].BaseProcess
    patches.put(base, "_bootstrap", _bootstrapped(base._bootstrap))


def _bootstrapped(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        _enter(self)
        return original(self, *args, **kwargs)

    return _bootstrap


@safe(None)
def _enter(process: Any) -> None:
    """Called in a child before its work begins. A healthy child is left alone."""
    if _notice.bad() is None:
        return
    held = vars(process)
    held["run"] = _once(held, "run", process.run)
    if (getattr(process._target, "__module__", ""), getattr(process._target, "__name__", "")) in CATCHING and process._args:
        first, *others = process._args
        process._args = (_once(held, "_args", first), *others)
    for module, name in CARRIERS:
        carrier = getattr(sys.modules.get(module), name, None)
        if carrier is not None and not hasattr(carrier, "explains"):  # a grandchild has its parent's
            setattr(sys.modules[module], name, _explaining_carrier(carrier))


def _once(held: dict[str, Any], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, explained, to stand in a process's own attributes. Before it runs they are as they were.

    The program may look at its own process, copy it, or send one of its methods to a process that it spawns.
    """
    before = {name: held[name]} if name in held else {}

    def put_back() -> None:
        held.pop(name, None)
        held.update(before)

    return explaining(function, put_back)


def explaining(function: Callable[..., Any], begin: Callable[[], object] = bool) -> Callable[..., Any]:
    """The function, with what it raises explained. `begin` is called first."""

    @functools.wraps(function)
    def explained(*args: Any, **kwargs: Any) -> Any:
        begin()
        try:
            return function(*args, **kwargs)
        except Exception as error:
            better = explain(error)
            better.__traceback__ = _trimmed(error) or error.__traceback__
            if better is error:
                raise  # not `from`: that would hide what it came of
            raise better from better.__cause__

    return explained


@safe(None)
def _trimmed(error: BaseException) -> TracebackType | None:
    return _places.trimmed(error.__traceback__)


def _explaining_carrier(carrier: Callable[[BaseException, Any], Any]) -> Callable[[BaseException, Any], Any]:
    """A pool's exception carrier that explains first, and sends nothing that the parent cannot read."""

    def carry(error: BaseException, trace: Any) -> Any:
        better = _sendable(explain(error)) or error
        return _keeping_notes(better, carrier(better, better.__traceback__ or trace))

    carry.explains = True  # type: ignore[attr-defined]
    return carry


def _keeping_notes(error: BaseException, carried: Any) -> Any:
    notes: list[str] = list(getattr(error, "__notes__", ()))
    if isinstance(getattr(carried, "tb", None), str):  # the text of the traceback, which would say them again
        carried.tb = _chain.without_notes(carried.tb, error)
    return Noted(carried, notes) if notes else carried


class Noted:
    """A pool's carrier of an exception with notes: one that pickles by a `__reduce__` of its own, as cupy's do, would lose them."""

    def __init__(self, carried: Any, notes: list[str]) -> None:
        self.carried, self.notes = carried, notes

    def __reduce__(self) -> tuple[Callable[..., BaseException], tuple[Any, list[str]]]:
        return noted, (self.carried, self.notes)


def noted(error: BaseException, notes: list[str]) -> BaseException:
    """In the parent: the exception, with its notes back."""
    error.__dict__["__notes__"] = notes
    return error


@safe(None)
def _travels(error: BaseException) -> bool:
    """Whether the parent will be able to unpickle an exception: if not, its pool waits for ever."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return False
    return True


@safe(None)
def _sendable(error: BaseException) -> BaseException | None:
    if _travels(error) is not False:
        return error
    plain = RuntimeError(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
    plain.__dict__.update({"__notes__": list(getattr(error, "__notes__", []))})
    plain.__cause__, plain.__context__, plain.__suppress_context__ = error.__cause__, error.__context__, error.__suppress_context__
    return plain.with_traceback(error.__traceback__)
