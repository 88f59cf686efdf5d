"""Every torch call that has a shadow among its arguments comes here.

It runs on the CPU data with torch's subclass dispatch off, and what it returns is on the device of its arguments. This is the hot
path: one dict look-up finds the calls that are different, one loop refuses CPU tensors, one assignment tags the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cudaguard._shadow import _mixing, _ops
from cudaguard._shadow._classes import HELD, Shadow, Tensor, beside, tag_all, waken
from cudaguard._shadow._state import settle, state

run: Callable[..., Any] = torch._C._disabled_torch_function_impl  # (func, types, args, kwargs) without subclass dispatch
autocasting: list[Callable[[], bool]] = []  # filled by _autocast
casted: list[Callable[..., Any]] = []

Handler = Callable[[type, Any, tuple[Any, ...], tuple[Any, ...], dict[str, Any]], Any]
special: dict[Any, Handler] = {}  # the calls that are different, filled by the modules that know them
views: set[Any] = set()  # calls that need no kernel, so that they work on inherited tensors
lazy: set[Any] = set()  # calls that make a storage first, by torch's lazy initialisation
passive: set[Any] = set()  # metadata: a driver is not needed to read it, and nothing in the answer is on a device
_QUIET = frozenset((type(None), bool, int, float, torch.Size, str, torch.dtype))
_LISTS = frozenset((list, tuple))
_SUSPECT = frozenset((Tensor, torch.nn.Parameter)) | _LISTS


def dispatch(cls: Any, func: Any, types: tuple[Any, ...], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
    """``__torch_function__`` of every shadow tensor."""
    if not state.mark[0]:
        settle()
    if cls._era != state.era:
        return _inherited(cls, func, types, args, kwargs or {})
    if func in special:
        return special[func](cls, func, types, args, kwargs or {})
    return ordinary(cls, func, types, args, kwargs or {})


def ordinary(cls: Any, func: Any, types: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # One class means one place, unless something plain is among the arguments; a parameter and a tensor are two classes of one place.
    if len(types) > 1:
        for kind in types:
            if getattr(kind, "_era", state.era) != state.era:
                return _inherited(cls, func, types, args, kwargs)
            if getattr(kind, "_place", None) != cls._place:
                _mixing.check(cls, func, args, kwargs)
                break
    for arg in (*args, *kwargs.values()) if kwargs else args:
        kind = type(arg)
        if kind in _SUSPECT and (kind not in _LISTS or not cls._calm.issuperset(map(type, arg))):
            _mixing.check(cls, func, args, kwargs)
            break
    if state.autocast and autocasting[0]():
        result = casted[0](func, types, args, kwargs)
    else:
        try:
            result = run(func, types, args, kwargs)
        except NotImplementedError as error:
            if not _ops.adopt(func, error):
                raise
            result = run(func, types, args, kwargs)
    kind = type(result)
    if kind is Tensor:
        if not (args and result is args[0]):
            result.__class__ = cls._plain
    elif kind not in _QUIET and not issubclass(kind, Shadow):
        tag_all(result, cls._place)
    return result


def _inherited(cls: Any, func: Any, types: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A tensor of an earlier era: its shape, its views and its dropping are fine, its data is another process's memory."""
    if func in passive:
        return run(func, types, args, kwargs)
    old = [leaf for leaf in _mixing.leaves((args, kwargs)) if isinstance(leaf, Shadow) and leaf._era != state.era]
    if old and old[0]._era != HELD and func in views:
        return _beside(old[0], run(func, types, args, kwargs))
    _mixing.check(cls, func, args, kwargs)  # torch looks at the devices before anything reaches one
    if func in lazy:
        state.policy.initialise()
    if not old:
        state.policy.inherited(name_of(func))
    for leaf in old:
        waken(leaf, name_of(func))
    return func(*args, **kwargs)  # all of this era now: dispatch anew


def _beside(owner: Any, result: Any) -> Any:
    for view in result if isinstance(result, (tuple, list)) else (result,):
        beside(view, owner)
    return result


def name_of(func: Any) -> str:
    name = getattr(func, "__name__", None) or str(func)
    if name in ("__get__", "__set__"):
        name = getattr(getattr(func, "__self__", None), "__name__", name)
    return f"torch.Tensor.{name}"


def read(cls: Any, func: Any, types: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Handler of the metadata: no checks, and what it returns is no tensor of the device."""
    return run(func, types, args, kwargs)
