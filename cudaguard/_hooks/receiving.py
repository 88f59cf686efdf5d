"""The parent's side of a loader, and whoever receives a CUDA tensor: pinning, dead workers, broken CUDA IPC."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import Any

from .. import _journal, _places, _respond, _verdict
from .._respond import safe
from ..errors import CudaGuardError
from . import _notice
from ._patch import Patches
from .sending import Left

PINNING = re.compile(r"cannot pin|only dense CPU tensors can be pinned")
DIED = re.compile(r"DataLoader worker .*(exited unexpectedly|is killed by signal)")

_outspoken: set[int] = set()  # workers that died of an exception of their own, which they printed


def install(patches: Patches) -> None:
    """Watch what arrives from workers and from other processes."""
    patches.wrap("torch.multiprocessing.reductions", "rebuild_cuda_tensor", _rebuilding)
    from . import edges

    patches.wrap("torch.utils.data._utils.pin_memory", "ExceptionWrapper", lambda _original: edges.PinException)
    iterator = getattr(_notice.module("torch.utils.data.dataloader"), "_MultiProcessingDataLoaderIter", None)
    if iterator is not None and hasattr(iterator, "_try_get_data"):
        patches.put(iterator, "_try_get_data", _noticing_death(iterator._try_get_data))


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
    """The guard's error for a batch that could not be pinned because it is on the GPU."""
    return _crossing("pin-cuda-output", error, None) if PINNING.search(str(error)) else None


def _crossing(slug: str, error: BaseException, site: Any) -> CudaGuardError | None:
    said = _notice.said(error)
    touch = _verdict.Touch(os.getpid(), "", site, said) if site else None
    return _respond.respond(_verdict.crossing(slug, _notice.journal(), said, "", touch, _respond.facts()), error)


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
