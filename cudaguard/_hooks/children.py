"""Children made by spawn and forkserver start armed, and know where they were started.

multiprocessing sends a child its preparation data before the target and its arguments. A passenger in it arms the
guard while it is unpickled: before a dataset that holds CUDA tensors is.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from .. import _config, _makers
from .._config import Config
from .._journal import Start
from .._respond import safe
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

    def __init__(self, config: Config, start: Start) -> None:
        self.config, self.start = config, start

    def __reduce__(self) -> tuple[Callable[[Config, Start], None], tuple[Config, Start]]:
        return arrive, (self.config, self.start)


def arrive(config: Config, start: Start) -> None:
    """Arm this child, and note where it was started."""
    from .. import _activate

    _activate.arrive(config, start)


@safe(None)
def _passenger() -> Passenger | None:
    place = _notice.site()
    method = "forkserver" if any("popen_forkserver" in frame.file for frame in place.stack) else "spawn"
    return Passenger(_config.current(), Start(os.getpid(), place, _makers.maker(place.stack), method))
