"""Children made by spawn and forkserver start armed, and know where they were started.

multiprocessing sends a child its preparation data before the target and its arguments. A passenger in it arms the
guard while it is unpickled: before a dataset that holds CUDA tensors is.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from .. import _config, _makers, _trace
from .._config import Config
from .._journal import Start
from .._respond import safe
from .._trace import Ticket
from . import _notice
from ._patch import Patches

KEY = "cudaguard"


def install(patches: Patches) -> None:
    """Watch multiprocessing.spawn, which is loaded."""
    patches.wrap("multiprocessing.spawn", "get_preparation_data", _with_passenger)


def _with_passenger(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    @functools.wraps(original)
    def get_preparation_data(name: str) -> dict[str, Any]:
        data = original(name)
        passenger = _passenger()
        return data if passenger is None else {**data, KEY: passenger}

    return get_preparation_data


class Passenger:
    """Arms the process that unpickles it."""

    def __init__(self, config: Config, start: Start, ticket: Ticket | None) -> None:
        self.config, self.start, self.ticket = config, start, ticket

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Config, Start, Ticket | None]]:
        _sent(self.ticket)  # not before: the fork server's own start asks for this data too, and sends it to nobody
        return arrive, (self.config, self.start, self.ticket)


def arrive(config: Config, start: Start, ticket: Ticket | None = None) -> None:
    """Arm this child, and note where it was started."""
    from .. import _activate

    _activate.arrive(config, start)
    _landed(ticket)


@safe(None)
def _sent(ticket: Ticket | None) -> None:
    _trace.departed(ticket)


@safe(None)
def _landed(ticket: Ticket | None) -> None:
    _trace.arrived(ticket)


@safe(None)
def _passenger() -> Passenger | None:
    place = _notice.site()
    method = "forkserver" if any("popen_forkserver" in frame.file for frame in place.stack) else "spawn"
    start = Start(os.getpid(), place, _makers.maker(place.stack), method)
    return Passenger(_config.current(), start, _trace.depart(method, _notice.journal().tier()))
