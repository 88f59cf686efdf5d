"""A worker's output that cannot be sent: pickled in the queue's feeder thread, where an error is printed and the batch lost.

The parent then waits for ever. multiprocessing.Queue has a hook for it: set on the worker's queue before its first put
it costs nothing until something fails, and the error travels to the parent in the batch's place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from .. import _culprit, _respond, _verdict
from .._respond import safe
from . import _notice

HOOK = "_on_queue_feeder_error"
STATE = "initial_state"  # of what torchdata's StatefulDataLoader is sent when a worker has started
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
    explained = unsendable(error, *_output(data))
    return None if explained is None else (index, _instead(data, carrier(explained)))


def _output(data: Any) -> tuple[Any, str]:
    """The part of a message's data that is to blame, and its name. torchdata sends (output, worker, state), and first of all a state alone."""
    if hasattr(data, STATE):
        return getattr(data, STATE), "state"
    if _stateful(data) and _culprit.path(data[0]) == "batch" and _culprit.path(data[2], "state") != "state":
        return data[2], "state"
    return (data[0] if _stateful(data) else data), "batch"


def _instead(data: Any, carried: Any) -> Any:
    """The error where the parent looks for one."""
    if hasattr(data, STATE):
        return dataclasses.replace(data, **{STATE: carried})
    return (carried, data[1], None) if _stateful(data) else carried


def _stateful(data: Any) -> bool:
    return isinstance(data, tuple) and len(data) == 3 and isinstance(data[1], int)


def unsendable(error: BaseException, data: Any, name: str = "batch") -> BaseException | None:
    """The guard's error for an output that cannot be sent, naming the part that is to blame."""
    said = _notice.said(error)
    culprit = _culprit.on_cuda(data, name) if RECEIVED in said else _culprit.path(data, name)
    finding = _verdict.crossing("unsendable-output", _notice.journal(), said, culprit, None, _respond.facts())
    return _respond.respond(finding, error)
