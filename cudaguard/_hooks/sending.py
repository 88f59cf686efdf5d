"""A worker's output that cannot be sent: pickled in the queue's feeder thread, where an error is printed and the batch lost.

The parent then waits for ever. multiprocessing.Queue has a hook for it: set on the worker's queue before its first put
it costs nothing until something fails, and the error travels to the parent in the batch's place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _culprit, _respond, _verdict
from .._respond import safe
from . import _notice

HOOK = "_on_queue_feeder_error"
RECEIVED = "received from another process"  # torch, of a CUDA tensor that came by IPC


def watch(queue: Any, carrier: Callable[[BaseException], Any]) -> None:
    """Let errors of a worker's result queue become that batch's error. `carrier` wraps one for the parent."""
    original = getattr(queue, HOOK, None)
    if original is not None:
        setattr(queue, HOOK, _hook(queue, carrier, original))


def _hook(queue: Any, carrier: Callable[[BaseException], Any], original: Callable[..., Any]) -> Callable[[Exception, Any], None]:
    def on_error(error: Exception, message: Any) -> None:
        answer = _answer(error, message, carrier)
        if answer is None:
            original(error, message)
        else:
            queue.put(answer)

    return on_error


@safe(None)
def _answer(error: Exception, message: Any, carrier: Callable[[BaseException], Any]) -> Any:
    """What to send in place of a message `(index, data)`; None where the guard does not act."""
    index, data = message
    stateful = isinstance(data, tuple) and len(data) == 3 and isinstance(data[1], int)  # (data, worker, state)
    explained = unsendable(error, data[0] if stateful else data)
    if explained is None:
        return None
    carried = carrier(explained)
    return (index, (carried, *data[1:2], None) if stateful else carried)


def unsendable(error: BaseException, data: Any) -> BaseException | None:
    """The guard's error for an output that cannot be sent, naming the part that is to blame."""
    said = _notice.said(error)
    culprit = _culprit.on_cuda(data) if RECEIVED in said else _culprit.path(data)
    finding = _verdict.crossing("unsendable-output", _notice.journal(), said, culprit, None, _respond.facts())
    return _respond.respond(finding, error)
