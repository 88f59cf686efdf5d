"""Setting attributes of torch, once, and knowing what was there before."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

_before: dict[tuple[int, str], Any] = {}
_MISSING = object()
replaced: dict[int, tuple[Any, Any]] = {}  # by id: a function or class that stands no more where it stood, and what stands there now


def put(owner: Any, name: str, value: Any, *, create: bool = False) -> None:
    """Replace an attribute. A name that this torch does not have is left out, unless `create`."""
    had = getattr(owner, name, _MISSING)
    if had is _MISSING and not create:
        return
    _before.setdefault((id(owner), name), had)
    if callable(had) and isinstance(owner, types.ModuleType):
        replaced[id(had)] = had, value
    setattr(owner, name, value)
    if isinstance(value, types.FunctionType) and isinstance(owner, (types.ModuleType, type)) and _found(value) is not value:
        value.__module__, value.__qualname__ = _address(owner, name)


def _found(function: types.FunctionType) -> Any:
    """What stands where a function says that it stands. There pickle looks for it; torch's C functions name a class that no module holds."""
    found: Any = sys.modules.get(function.__module__ or "")
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found


def _address(owner: Any, name: str) -> tuple[str, str]:
    return (owner.__name__, name) if isinstance(owner, types.ModuleType) else (owner.__module__, f"{owner.__qualname__}.{name}")


def wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function by what `make` makes of it; a missing name is left out."""
    original = getattr(owner, name, None)
    if original is None:
        return
    made = make(original)
    put(owner, name, dress(made, original))


def dress(made: Any, original: Any) -> Any:
    """Give a replacement the name and text of what it replaces. C functions lack some of that, so no functools.wraps alone."""
    functools.update_wrapper(made, original, updated=())
    return made
