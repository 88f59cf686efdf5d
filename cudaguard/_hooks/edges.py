"""The edge of a loader's worker: where an exception leaves the child for the parent.

torch wraps it in an ExceptionWrapper, which keeps only its text. In a guarded worker that name leads to a subclass,
which explains the exception while it is still there and carries the finding whole.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from typing import Any, NoReturn

from torch._utils import ExceptionWrapper

from .. import _config, _journal, _places, _respond
from .._journal import Worker
from .._respond import safe
from ..errors import CudaForkError, CudaGuardError
from . import _chain, sending
from ._explain import explain

_handed_over: set[str] = set()  # what the parent was told of this worker
Told = tuple[str, tuple[dict[str, object], str]]  # a note; its finding, and the finding's text


class ExplainedException(ExceptionWrapper):
    """A worker's exception on its way to the parent; raised there as the guard's own where CUDA and processes are to blame, else with its notes."""

    explained: CudaGuardError | None = None
    told: tuple[Told, ...] = ()

    def __init__(self, exc_info: Any = None, where: str = "in background") -> None:
        exc_info = exc_info or sys.exc_info()
        better = self.better(exc_info[1])  # before torch writes it down, which counts as showing it
        super().__init__(exc_info, where)  # type: ignore[no-untyped-call]
        if isinstance(better, CudaGuardError):
            self.explained, self.exc_msg = better, _own_frames(exc_info[1])
            _handed_over.add(str(better))
        elif better is not None:
            self.told, self.exc_msg = _told(better), _chain.without_notes(self.exc_msg, better)

    @staticmethod
    @safe(None)
    def better(error: BaseException) -> BaseException | None:
        """The guard's error in place of this one, or this one with the guard's notes."""
        explained = explain(error)
        return explained if isinstance(explained, CudaGuardError) or _chain.notes(explained) else _after_another(explained)

    def reraise(self) -> NoReturn:
        """Raise the guard's error, finding and all; the traceback of the process or thread it came from is its cause."""
        if self.explained is None:
            try:
                super().reraise()  # type: ignore[no-untyped-call]
            except BaseException as own:
                _note_again(own, self.told)
                raise
        assert self.explained is not None  # torch's reraise never returns
        error = type(self.explained)(str(self.explained), self.explained.finding)
        _received(error)
        try:
            raise error from RemoteTraceback(f"{self.where}:\n{self.exc_msg}")
        finally:
            del error  # its traceback holds this frame: a ring would keep the iterator alive, for the next loader's workers to complain of


class _AnyWrapper(type):
    """torch's pin thread asks `isinstance(data, ExceptionWrapper)` of what the workers sent: the answer must stay torch's."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, ExceptionWrapper)


class PinException(ExplainedException, metaclass=_AnyWrapper):
    """An exception of the parent's pin thread."""

    def __iter__(self) -> NoReturn:
        """torchdata unpacks (output, worker, state) from what the pin thread sends, an error or not: it gets the error."""
        self.reraise()

    @staticmethod
    @safe(None)
    def better(error: BaseException) -> CudaGuardError | None:
        """The guard's error for a batch that is on the GPU already."""
        from . import receiving

        return receiving.pin_error(error)


class RemoteTraceback(Exception):
    """The traceback of another process, as text: the cause of the error that the parent raises."""


@safe("")
def _own_frames(error: BaseException) -> str:
    """The worker's traceback without the guard's frames, and without the text: the parent's error says that."""
    return "".join(traceback.format_tb(_places.trimmed(error.__traceback__))).rstrip()


def _after_another(error: BaseException) -> BaseException:
    """An exception that is not CUDA's, with a note on what this worker was told before: where a dataset catches all and goes on, that may be why."""
    own = [pair for pair in _respond.findings if pair[0]["pid"] == os.getpid() and _respond.ERRORS.get(str(pair[0]["slug"])) is CudaForkError]
    before = [words for _, words in own if words not in _handed_over]
    if before and _config.current().acting in ("error", "reroute") and hasattr(error, "add_note"):
        error.add_note(f"{_respond.NOTE}an exception that this worker caught before may be why:\n{before[0]}")
    return error


@safe(())
def _told(error: BaseException) -> tuple[Told, ...]:
    """The guard's notes on an exception, each with its finding."""
    return tuple((note, pair) for note in _chain.notes(error) for pair in _respond.findings if note.endswith(pair[1]))


@safe(None)
def _note_again(error: BaseException, told: tuple[Told, ...]) -> None:
    """In the parent: put the notes of the worker on the exception that stands for the worker's."""
    for note, (finding, words) in told:
        error.add_note(note)
        _respond.received(finding, words)


@safe(None)
def _received(error: CudaGuardError) -> None:
    if error.finding is not None:
        _respond.received(error.finding, str(error))


@safe(None)
def enter_worker(module: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Called in a worker before its loop runs: note who it is, and put the explaining wrapper in the loop's module."""
    given = signature.bind(*args, **kwargs).arguments
    _journal.current.worker = Worker(given["worker_id"], given["num_workers"])
    if _config.current().mode == "off":
        return
    setattr(importlib.import_module(module), "ExceptionWrapper", ExplainedException)  # noqa: B010  # a module of torch's, not ours
    sending.watch(given["data_queue"], _carry, stateful="worker_state" in signature.parameters)


def _carry(error: BaseException) -> ExplainedException:
    return ExplainedException((type(error), error, error.__traceback__), where="in the worker's queue")
