"""What cannot be sent: a worker's output that fails in its queue's feeder thread, the error of which its own loop ends, a CUDA tensor.

The first is printed there and the batch lost: the parent then waits for ever. multiprocessing.Queue has a hook for it: set on the
worker's queue before its first put it costs nothing until something fails, and the error travels to the parent in the batch's place.
The second is printed too, and the parent is told that a worker exited unexpectedly. There is no batch in whose place it could go.
The third is refused wherever it is sent, by a method that every way of sending calls.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from torch._utils import ExceptionWrapper

from .. import _config, _culprit, _journal, _places, _respond, _verdict
from .._advice import SENT_ON
from .._journal import Fork
from .._respond import safe
from .._verdict import Finding, Touch
from ..errors import CudaGuardError
from . import _notice
from ._explain import explain
from ._patch import Patches

HOOK = "_on_queue_feeder_error"
STATE = "initial_state"  # of what torchdata's StatefulDataLoader is sent when a worker has started
DRIVER_SAYS = re.compile(r"(CUDA|HIP) error: ")  # in a child that was forked too late: whatever the driver says there, the fork is why
SHARES = "_share_cuda_"
PINNING = "torch.utils.data._utils.pin_memory"  # whose thread hands on what the workers sent
_watched: list[Any] = []  # a worker's result queue: what its own thread cannot send becomes that batch's error


def install(patches: Patches) -> None:
    """Watch where torch refuses to share a CUDA tensor."""
    kind = getattr(_notice.module("torch.storage"), "TypedStorage", None)
    if hasattr(kind, SHARES):
        patches.put(kind, SHARES, _sharing(getattr(kind, SHARES)))
    else:
        patches.unwatched.append(f"torch.storage.TypedStorage.{SHARES}")


def _sharing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _share_cuda_(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except RuntimeError as error:
            better = _refused(error)
            if better is None or better is error:
                raise
            raise better from error

    return _share_cuda_


@safe(None)
def _refused(error: RuntimeError) -> BaseException | None:
    """The guard's error where the user's line sends, or a queue's thread does."""
    said = _notice.said(error)
    if isinstance(error, CudaGuardError) or any(getattr(queue, "_thread", None) is threading.current_thread() for queue in _watched):
        return None
    if SENT_ON not in said:
        return explain(error) if DRIVER_SAYS.match(said) and _notice.bad() else None
    touch = Touch(os.getpid(), "", _places.raised_at(error, _notice.journal().cut()), said)
    return _respond.respond(_verdict.crossing("ipc-broken", _notice.journal(), said, "", touch, _respond.facts()), error)


def watch(queue: Any, carrier: Callable[[BaseException], Any], stateful: bool) -> None:
    """Let errors of a worker's result queue become that batch's error. `carrier` wraps one for the parent.

    `stateful` says that the loader is torchdata's: an output of the user's may look like what that one sends, so its look does not tell.
    """
    original = getattr(queue, HOOK, None)
    if original is not None:
        _watched.append(queue)
        setattr(queue, HOOK, _hook(queue, carrier, stateful, original))


def _hook(queue: Any, carrier: Callable[[BaseException], Any], stateful: bool, original: Callable[..., Any]) -> Callable[[Exception, Any], None]:
    def on_error(error: Exception, message: Any) -> None:
        answer = _answer(error, message, carrier, stateful)
        if answer is None:
            original(error, message)
        else:
            queue.put(answer)

    return on_error


@safe(None)
def _answer(error: Exception, message: Any, carrier: Callable[[BaseException], Any], stateful: bool) -> Any:
    """What to send in place of a message `(index, data)`; None where the guard does not act."""
    index, data = message
    explained = unsendable(error, *(_to_blame(data) if stateful else (data, "batch")))
    if explained is None:
        return None
    carried = carrier(explained)
    return index, (_instead(data, carried) if stateful else carried)


def _to_blame(data: Any) -> tuple[Any, str]:
    """What of torchdata's message cannot be sent, and its name. It is (output, worker, state), and first of all a state alone."""
    if hasattr(data, STATE):
        return getattr(data, STATE), "state"
    output, _, state = data
    blameless = _culprit.path(output) == "batch" and _culprit.path(state, "state") != "state"
    return (state, "state") if blameless else (output, "batch")


def _instead(data: Any, carried: Any) -> Any:
    """The error where torchdata looks for one."""
    if hasattr(data, STATE):
        return dataclasses.replace(data, **{STATE: carried})
    return carried, data[1], None


def unsendable(error: BaseException, data: Any, name: str = "batch") -> BaseException | None:
    """The guard's error for an output that cannot be sent, naming the part that is to blame."""
    if isinstance(error, CudaGuardError):  # of an object that touches CUDA when it is pickled
        return error
    said, fork = _notice.said(error), _notice.bad()
    if fork is not None and DRIVER_SAYS.match(said):
        finding = _inherited(error, fork, _culprit.on_cuda(data, name))
    else:
        culprit = _culprit.on_cuda(data, name) if SENT_ON in said else _culprit.path(data, name)
        finding = _verdict.crossing("unsendable-output", _notice.journal(), said, culprit, None, _respond.facts())
    return _respond.respond(finding, error)


def _inherited(error: BaseException, fork: Fork, culprit: str) -> Finding:
    """A worker that cannot use CUDA returned a CUDA tensor as it is: it can only have inherited it, and to send it is the first use."""
    site = _places.raised_at(error, _notice.journal().cut())
    said = f"{_notice.said(error)} (when it was to send {culprit})" if culprit else _notice.said(error)
    touch = Touch(os.getpid(), "", site, said)  # no call: it is the queue's own thread
    return _verdict.forked("inherited-tensor", _notice.journal(), touch, _respond.facts(), fork)._replace(detail=culprit)


class Left(ExceptionWrapper):
    """What a worker's loop ended with, sent in place of a numbered batch: nobody knows the number, since what failed may be to receive it.

    Whoever takes it apart to see the number, in any loader, gets the error. Only the pin thread hands it on.
    """

    def __init__(self, pid: int, carried: Any) -> None:
        self.pid, self.carried = pid, carried

    def __iter__(self) -> Iterator[Any]:
        if sys._getframe(1).f_globals.get("__name__") != PINNING:
            self.reraise()
        return iter((None, self))

    def reraise(self) -> NoReturn:
        if self.carried is not None:
            self.carried.reraise()
        raise RuntimeError(f"DataLoader worker (pid {self.pid}) exited unexpectedly")


def left(error: Exception, queue: Any) -> bool:
    """Tell the parent of an exception that ends a worker's loop. False where it is not the guard's: the worker should die of it as it would."""
    if _notice.bad() is None or _config.current().mode == "off":
        return False
    explained = explain(error)
    told = isinstance(explained, CudaGuardError)
    queue.put(Left(os.getpid(), _carried(explained) if told else None))
    return told


def _carried(error: BaseException) -> Any:
    from . import edges

    worker = _journal.current.worker
    where = f"in DataLoader worker process {worker.id if worker else '?'}"  # torch's words
    return edges.ExplainedException((type(error), error, error.__traceback__), where)
