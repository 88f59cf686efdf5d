"""Hooks on torch.cuda: the lazy initialisation, and the questions that wake the driver.

Plain functions with functools.wraps, not wrapt proxies: they pickle and copy by name like the originals, Dynamo takes
them for functions, and the quick exit costs what the original's costs (a proxy adds 0.6 us to each call).
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from .. import _driver
from .._journal import INITIALISED, QUERIED
from .._places import Site
from .._respond import safe
from . import _notice, _refuse
from ._patch import Patches
from .forks import VISIBLE

# torch.cuda.memory and torch.cuda.random hold references of their own: a patch of torch.cuda alone misses them.
INITIALISERS = (("torch.cuda", "_lazy_init"), ("torch.cuda.memory", "_lazy_init"), ("torch.cuda.random", "_lazy_init"))
# get_arch_list makes later children bad without waking the driver (torch 2.13).
QUERIES = (("torch.cuda", "is_available"), ("torch.cuda", "device_count"), ("torch.cuda", "get_arch_list"))
ALWAYS_POISON = {"get_arch_list"}
# What a child of a process with a GPU is told when the driver fails in it: it would quietly take the CPU.
LOST = {"is_available": False, "device_count": 0}

# Methods of a function that functools.lru_cache made, as device_count is in torch 2.2: `torch.cuda.device_count.cache_clear()` is in use.
CACHED = ("cache_clear", "cache_info", "cache_parameters")

_inside = threading.local()
_found = False  # was this process, or one that it was forked from, ever told that there is a GPU?


def install(patches: Patches) -> None:
    """Watch torch.cuda, which is loaded."""
    cuda = _notice.module("torch.cuda")
    make = functools.lru_cache(functools.partial(_initialiser, cuda))  # one for all holders, or all but one would not pickle
    for holder, name in INITIALISERS:
        patches.wrap(holder, name, make)
    for holder, name in QUERIES:
        patches.wrap(holder, name, functools.partial(_query, cuda))
    for function in patches.made("torch.cuda"):
        function._dynamo_marked_constant = True  # where Dynamo was loaded before, it would trace into ours; torch's own it calls
        _fold(function)


def _fold(function: Callable[..., Any]) -> None:
    """Dynamo of torch 2.2 keeps a list of what it calls while it compiles, by object: what it was loaded with."""
    listed = getattr(sys.modules.get("torch._dynamo.variables.torch"), "constant_fold_functions", None)
    if isinstance(listed, list) and inspect.unwrap(function) in listed:
        listed.append(function)


def _initialiser(cuda: Any, original: Callable[[], None]) -> Callable[[], None]:
    is_initialized = cuda.is_initialized

    @functools.wraps(original)
    def _lazy_init() -> None:
        if is_initialized():  # torch's own quick exit
            return
        if getattr(_inside, "busy", False):  # torch initialises by calls that come here again
            return original()
        error, place = _approach()
        if error is not None:
            raise error
        _inside.busy = True
        try:
            _notice.call(_initialise, original, place)
        finally:
            _inside.busy = False

    return _lazy_init


def _initialise(original: Callable[[], None], place: Site | None) -> None:
    original()
    _arrived(place)


@safe((None, None))
def _approach() -> tuple[BaseException | None, Site | None]:
    error = _notice.touched()
    if error is not None or _notice.bad() is not None:
        return error, None
    refusal = _refuse.error(INITIALISED)
    if refusal is not None:
        return refusal, None
    _notice.woken()
    return None, _notice.site()


@safe(None)
def _arrived(place: Site | None) -> None:
    if place is not None:
        _notice.rose(INITIALISED, place)


def _query(cuda: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def query(*args: Any, **kwargs: Any) -> Any:
        if cuda._initialized or getattr(_inside, "busy", False):
            return original(*args, **kwargs)
        refusal = _refuse.error(QUERIED, f"torch.cuda.{original.__name__}")
        if refusal is not None:
            raise refusal
        if _before():
            return _answered(original.__name__, original(*args, **kwargs))
        return _notice.call(_ask, original, *args, **kwargs)

    for name in CACHED:
        if hasattr(original, name):
            setattr(query, name, getattr(original, name))
    return query


def _ask(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result = _answered(original.__name__, original(*args, **kwargs))
    _after(original.__name__, result)
    return result


def _answered(name: str, result: Any) -> Any:
    global _found
    _found = _found or (name in LOST and bool(result))
    return result


def _had() -> bool:
    """Whether there was a GPU to lose. torch marks the children of a process that asked in vain as well: none there, or hidden from it."""
    book = _notice.journal()
    return _found or book.late is not None or any(step.tier != QUERIED for step in book.steps)


@safe(True)
def _before() -> bool:
    """Whether there is nothing to look for after the call: CUDA is up already."""
    return _notice.bad() is None and _notice.woken()


def _hip() -> bool:
    """Whether this is a ROCm build: its driver cannot be asked, but a question that was answered marks later children all the same."""
    return bool(getattr(_notice.module("torch.version"), "hip", None))


@safe(None)
def _after(name: str, result: Any) -> None:
    fork = _notice.bad()
    if fork is not None:
        if LOST.get(name, name) == result and os.environ.get(VISIBLE) == fork.visible and _had():
            _notice.lost(name, fork)
    elif _driver.up() or name in ALWAYS_POISON or (result and _hip()):
        _notice.rose(QUERIED, None, "", f"torch.cuda.{name}")
