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


def watch(queue: Any, carrier: Callable[[BaseException], Any], stateful: bool) -> None:
    """Let errors of a worker's result queue become that batch's error. `carrier` wraps one for the parent.

    `stateful` says that the loader is torchdata's: an output of the user's may look like what that one sends, so its look does not tell.
    """
    original = getattr(queue, HOOK, None)
    if original is not None:
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
    said = _notice.said(error)
    culprit = _culprit.on_cuda(data, name) if RECEIVED in said else _culprit.path(data, name)
    finding = _verdict.crossing("unsendable-output", _notice.journal(), said, culprit, None, _respond.facts())
    return _respond.respond(finding, error)
