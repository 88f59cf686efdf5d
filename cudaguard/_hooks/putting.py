"""Which line put a CUDA tensor into a queue: the queue pickles it in a thread of its own, where no line of the user's is on the stack.

Installed in a child of a bad fork alone, where such a tensor can only be inherited, and to send it must fail.
"""

from __future__ import annotations

import functools
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from .._places import Site
from .._respond import safe
from . import _notice

QUEUES = ("multiprocessing.queues", "multiprocess.queues", "billiard.queues")
CLASSES = ("Queue", "JoinableQueue")  # each has a `put` of its own
FEEDER, OBJECT = "_feed", "obj"  # the thread's function, and what it calls the object that it pickles
MOST = 64
LOOKED_AT = 32  # parts of a container

_lines: OrderedDict[int, Site] = OrderedDict()  # by the identity of the object
_watched: set[type] = set()  # a grandchild inherits it with the classes


def install() -> None:
    """Note, from now on, who puts CUDA tensors into queues."""
    for module in (sys.modules[name] for name in QUEUES if name in sys.modules):
        for kind in (getattr(module, name, None) for name in CLASSES):
            if kind is not None and kind not in _watched:
                _watched.add(kind)
                kind.put = _noting(kind.put)


def _noting(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def put(self: Any, obj: Any, *args: Any, **kwargs: Any) -> None:
        if _on_cuda(obj):
            _note(obj)
        original(self, obj, *args, **kwargs)

    return put


@safe(False)
def _on_cuda(obj: Any) -> bool:
    """A cheap look, since it is on the way of every put: a tensor, or the tensors of a flat container."""
    parts = list(obj.values()) if isinstance(obj, dict) else obj if isinstance(obj, (list, tuple)) else (obj,)
    tensor = getattr(sys.modules.get("torch"), "Tensor", type(None))
    return any(issubclass(type(part), tensor) and part.is_cuda for part in parts[:LOOKED_AT])


@safe(None)
def _note(obj: Any) -> None:
    _lines[id(obj)] = _notice.site()
    while len(_lines) > MOST:
        _lines.popitem(last=False)


def line(error: BaseException) -> Site | None:
    """Where the object was put whose pickling raised an exception in a queue's thread; None for any other exception."""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_name == FEEDER and frame.f_globals.get("__name__") in QUEUES:
            return _lines.get(id(frame.f_locals.get(OBJECT)))
        trace = trace.tb_next
    return None
