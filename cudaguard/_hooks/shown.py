"""Where a child that cannot use CUDA shows an exception, or sends it: the only edges of what it catches itself.

A server answers with an error and goes on, a plain fork prints and leaves by `os._exit`. Such an exception may be caught again,
so it is annotated; only the last words of a process are replaced. All this is installed in a child of a bad fork alone.
"""

from __future__ import annotations

import functools
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from .. import _places
from . import _chain
from ._explain import annotate, explain

Hook = Callable[..., Any]
PICKLERS = ("multiprocessing.reduction", "multiprocess.reduction", "billiard.reduction")

_thread = threading.local()  # `written` is the identity of the exception that Python's own printer wrote down last


def _last_words(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """What ends the process: after a plain os.fork there is no other edge."""
    better = explain(error)
    _originals[0](type(better), better, _places.trimmed(better.__traceback__ or trace))


def _of_a_thread(args: Any) -> Any:
    annotate(args.exc_value)
    return _originals[1](args)


def _ignored(unraisable: Any) -> None:
    """What a `__del__` raises. Python's own hook prints no notes in most versions."""
    error, _thread.written = unraisable.exc_value, None
    annotated = annotate(error)
    _originals[2](unraisable)
    if annotated is not None and _originals[2] is sys.__unraisablehook__ and _thread.written != id(error):
        print(*_chain.notes(error), sep="\n", file=sys.stderr)


@functools.wraps(traceback.TracebackException.__init__)
def _written(self: Any, exc_type: Any, exc_value: Any, *args: Any, **kwargs: Any) -> None:
    """print_exc, format_exc and logging make a `TracebackException`. It makes more itself, of what is behind an exception."""
    if kwargs.get("_seen") is None:
        annotate(exc_value)
        _thread.written = id(exc_value)
    _originals[3](self, exc_type, exc_value, *args, **kwargs)


def _sent(error: BaseException) -> Any:
    annotate(error)
    return error.__reduce_ex__(2)


HOOKS: tuple[tuple[Any, str, Hook], ...] = (
    (sys, "excepthook", _last_words),
    (threading, "excepthook", _of_a_thread),
    (sys, "unraisablehook", _ignored),
    (traceback.TracebackException, "__init__", _written),
)
_originals: list[Any] = [None] * len(HOOKS)


def install() -> None:
    """Explain, from now on, what this process shows or sends. A grandchild has its parent's hooks.

    All is made beforehand: a child that was just forked pays for each page that it writes to.
    """
    if _originals[0] is not None:
        return
    for n, (holder, name, hook) in enumerate(HOOKS):
        _originals[n] = getattr(holder, name)
        setattr(holder, name, hook)
    for module in PICKLERS:
        if module in sys.modules:
            _explain_sent(sys.modules[module])


def _explain_sent(module: Any) -> None:
    """Annotate torch's exceptions while they are pickled. By their exact types: a look at all that is pickled would slow the healthy."""
    known = getattr(module.ForkingPickler, "_extra_reducers", None)
    if known is not None:
        known.setdefault(RuntimeError, _sent)
        known.setdefault(getattr(sys.modules.get("torch"), "AcceleratorError", RuntimeError), _sent)
