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


def install() -> None:
    """Explain, from now on, what this process shows or sends. A grandchild has its parent's hooks."""
    for holder, name, make in HOOKS:
        original = getattr(holder, name, None)
        if original is not None and not hasattr(original, "explains"):
            hook = make(original)
            hook.explains = True  # type: ignore[attr-defined]
            setattr(holder, name, hook)
    for module in PICKLERS:
        _explain_sent(getattr(sys.modules.get(module), "ForkingPickler", None))


def _last_words(original: Hook) -> Hook:
    """What ends the process: after a plain os.fork there is no other edge."""

    def excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        better = explain(error)
        original(type(better), better, _places.trimmed(better.__traceback__ or trace))

    return excepthook


def _of_a_thread(original: Hook) -> Hook:
    def excepthook(args: Any) -> Any:
        annotate(args.exc_value)
        return original(args)

    return excepthook


def _ignored(original: Hook) -> Hook:
    """What a `__del__` raises. Python's own hook prints no notes in most versions."""

    def unraisablehook(unraisable: Any) -> Any:
        error, _thread.written = unraisable.exc_value, None
        annotated = annotate(error)
        original(unraisable)
        if annotated is not None and original is sys.__unraisablehook__ and _thread.written != id(error):
            print(*_chain.notes(error), sep="\n", file=sys.stderr)

    return unraisablehook


def _written(original: Hook) -> Hook:
    """`traceback.TracebackException`: print_exc, format_exc and logging make one. It makes more itself, of what is behind an exception."""

    @functools.wraps(original)
    def __init__(self: Any, exc_type: Any, exc_value: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("_seen") is None:
            annotate(exc_value)
            _thread.written = id(exc_value)
        original(self, exc_type, exc_value, *args, **kwargs)

    return __init__


HOOKS: tuple[tuple[Any, str, Callable[[Hook], Hook]], ...] = (
    (sys, "excepthook", _last_words),
    (threading, "excepthook", _of_a_thread),
    (sys, "unraisablehook", _ignored),
    (traceback.TracebackException, "__init__", _written),
)


def _explain_sent(pickler: Any) -> None:
    """Annotate torch's exceptions while they are pickled. By their exact types: a look at all that is pickled would slow the healthy."""
    known = getattr(pickler, "_extra_reducers", None)
    for kind in {RuntimeError, getattr(sys.modules.get("torch"), "AcceleratorError", RuntimeError)}:
        if known is not None and kind not in known:
            pickler.register(kind, _reduced)


def _reduced(error: BaseException) -> Any:
    annotate(error)
    return error.__reduce_ex__(2)
