"""What the parent prepares before the workers of one iterator start. A forked worker finds it in its memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from .._hooks import _notice
from . import _snapshot
from ._snapshot import Snapshot

_current = threading.local()  # by thread: two threads may each be making an iterator; a fork keeps the forking thread's


class Plan:
    """For the workers of one iterator: what is known of the GPUs."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        self.snapshot = snapshot


def current() -> Plan | None:
    """The plan of the iterator that this thread is making; in a forked worker, the plan that it was made by."""
    return getattr(_current, "plan", None)


@contextlib.contextmanager
def making(plan: Plan) -> Iterator[None]:
    """While the workers are started."""
    outer, _current.plan = current(), plan
    try:
        yield
    finally:
        _current.plan = outer


def prepare(loader: Any) -> Plan:
    """Look at what the workers will need. Wakes nothing: if CUDA is down, the workers are healthy and need nothing."""
    up = _notice.bad() is None and _notice.woken()
    return Plan(_snapshot.take() if up else None)
