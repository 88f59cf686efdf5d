"""The parent's side of a loader, and whoever receives a CUDA tensor: pinning, dead workers, broken CUDA IPC."""

from __future__ import annotations

import functools
import os
import re
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import _journal, _makers, _places, _respond, _verdict
from .._journal import Journal
from .._places import Frame
from .._respond import safe
from ..errors import CudaGuardError
from . import _notice, sending
from ._patch import Patches
from .sending import Left

PINNING = re.compile(r"cannot pin|only dense CPU tensors can be pinned")
DIED = re.compile(r"DataLoader worker .*(exited unexpectedly|is killed by signal)")

_outspoken: set[int] = set()  # workers that died of an exception of their own, which they printed


def install(patches: Patches) -> None:
    """Watch what arrives from workers and from other processes, and what cannot be sent there."""
    sending.install(patches)
    patches.wrap("torch.multiprocessing.reductions", "rebuild_cuda_tensor", _rebuilding)
    from . import edges

    patches.wrap("torch.utils.data._utils.pin_memory", "ExceptionWrapper", lambda _original: edges.PinException)
    iterator = getattr(_notice.module("torch.utils.data.dataloader"), "_MultiProcessingDataLoaderIter", None)
    for method, make in (("__init__", _making), ("_try_get_data", _noticing_death)):
        if hasattr(iterator, method):
            patches.put(iterator, method, make(getattr(iterator, method)))


def _rebuilding(original: Callable[..., Any]) -> Callable[..., Any]:
    """Sent by name: it pickles like the original as long as it keeps its name."""

    @functools.wraps(original)
    def rebuild_cuda_tensor(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except RuntimeError as error:
            better = _broken(error)
            if better is None:
                raise
            raise better from error

    return rebuild_cuda_tensor


@safe(None)
def _broken(error: RuntimeError) -> CudaGuardError | None:
    """A tensor that cannot be opened in a process whose CUDA is in order."""
    if isinstance(error, CudaGuardError) or _notice.bad() is not None:
        return None
    return _crossing("ipc-broken", error, _places.raised_at(error, _notice.journal().cut()))


def pin_error(error: BaseException) -> CudaGuardError | None:
    """The guard's error for a batch that could not be pinned because it is on the GPU. Raised in the pin thread, of which no worker knows."""
    if not PINNING.search(str(error)):
        return None
    made = _pinned_for.get(threading.current_thread()) or next(iter(_being_made), None)
    return _crossing("pin-cuda-output", error, None, _of_worker(error, made) if made else None)


def _crossing(slug: str, error: BaseException, site: Any, book: Journal | None = None) -> CudaGuardError | None:
    said = _notice.said(error)
    touch = _verdict.Touch(os.getpid(), "", site, said) if site else None
    return _respond.respond(_verdict.crossing(slug, book or _notice.journal(), said, "", touch, _respond.facts()), error)


class _Made(NamedTuple):
    """An iterator, and the stack that made it: its workers began there."""

    iterator: weakref.ref[Any]
    stack: tuple[Frame, ...]


_pinned_for: weakref.WeakKeyDictionary[threading.Thread, _Made] = weakref.WeakKeyDictionary()
_being_made: list[_Made] = []  # a batch may reach the pin thread before its iterator is whole


def _making(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        made = _begun(self)
        try:
            original(self, *args, **kwargs)
        finally:
            _ended(self, made)

    return __init__


@safe(None)
def _begun(iterator: Any) -> _Made:
    made = _Made(weakref.ref(iterator), _places.waiting())
    _being_made.append(made)
    return made


@safe(None)
def _ended(iterator: Any, made: _Made | None) -> None:
    thread = getattr(iterator, "_pin_memory_thread", None)
    if made is not None and thread is not None:
        _pinned_for[thread] = made
    if made in _being_made:
        _being_made.remove(made)


def _of_worker(error: BaseException, made: _Made) -> Journal | None:
    """The journal of the worker whose batch it was, as far as the parent knows it: how that worker was made, and what happened here before."""
    iterator = made.iterator()
    number = _worker_number(error, iterator)
    if iterator is None or number is None:
        return None
    worker, book = iterator._workers[number], _notice.journal()
    site = _places.from_frames(made.stack, book.cut())
    child = _journal.Journal()
    child.pid, child.ppid, child.steps, child.late = worker.pid, os.getpid(), list(book.steps), book.late
    child.worker = _journal.Worker(number, len(iterator._workers))
    child.start = _journal.Start(os.getpid(), site, _makers.maker(site.stack), worker._popen.method)
    return child


def _worker_number(error: BaseException, iterator: Any) -> int | None:
    """Whose batch the pin thread had in hand: it knows the batch's number, and the iterator who was asked for it."""
    trace = error.__traceback__
    while trace is not None and "idx" not in trace.tb_frame.f_locals:
        trace = trace.tb_next
    task = getattr(iterator, "_task_info", {}).get(trace.tb_frame.f_locals["idx"]) if trace is not None else None
    return task[0] if task else None


def _noticing_death(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _try_get_data(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            found = original(self, *args, **kwargs)
            while type(found[1]) is Left and found[1].carried is None:
                _outspoken.add(found[1].pid)
                found = original(self, *args, **kwargs)
            return found
        except RuntimeError as error:
            _died(error, self)
            raise

    return _try_get_data


@safe(None)
def _died(error: RuntimeError, iterator: Any) -> None:
    """Note what is known of a worker that died without an exception, if CUDA was up when it was forked.

    A worker that was spawned began anew: the last fork here was somebody else's, and no reason for its death.
    """
    book = _notice.journal()
    fork = book.last_child()
    forked = any(getattr(worker._popen, "method", None) == "fork" for worker in iterator._workers)
    if fork is None or fork.tier is None or not forked or not DIED.search(str(error)):
        return
    pid = int((re.findall(r"\d+", str(error)) or ["0"])[0])
    if pid in _outspoken:
        return
    child = _journal.Journal()
    child.steps, child.late = list(book.steps), book.late
    child.forked(fork._replace(pid=pid))
    finding = _verdict.forked("worker-died", child, None, _respond.facts(), child.forks[-1], _notice.said(error))
    _respond.annotate(error, finding)
