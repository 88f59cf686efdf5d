"""Find the GPU data that a loader's workers will inherit: whatever the dataset, collate_fn or worker_init_fn can reach.

Attributes, containers, closures, partials, bound methods, wrapped datasets, and the module globals that the user's own functions
name. Nothing of the user's is called: no property, no iterator, no `__getattr__`.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from .. import _places

Tensor = torch.Tensor
_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), range, slice, torch.dtype, torch.Size, torch.memory_format, torch.layout)
_SEQUENCES = (list, tuple, set, frozenset, deque)
_OPAQUE = (types.ModuleType, types.BuiltinFunctionType, types.FrameType, types.CodeType, types.TracebackType, type(NotImplemented), type(...))
_LONG = 256  # containers longer than this are looked at by type first


class Held(NamedTuple):
    """A tensor (or generator) on a GPU: where it was found, as a user would write it, and what holds it under which key."""

    data: Any
    path: str
    holder: Any
    key: Any


Step = tuple[Any, str, Any, Any]  # value, path, holder, key


def find(roots: Mapping[str, Any]) -> list[Held]:
    """Every CUDA tensor within reach of the roots, each once. `roots` maps a name for paths to an object."""
    found: list[Held] = []
    seen: dict[int, Any] = {}  # keeps what was seen alive, so that no id comes twice
    todo: list[Step] = [(value, name, None, None) for name, value in roots.items()]
    while todo:
        value, path, holder, key = todo.pop()
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen[id(value)] = value
        if _on_gpu(value):
            found.append(Held(value, path, holder, key))
        todo.extend(_inside(value, path))
    return found


def _on_gpu(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_cuda
    return isinstance(value, torch._C.Generator) and value.device.type == "cuda"


def _inside(value: Any, path: str) -> Iterator[Step]:
    """What an object leads to."""
    if isinstance(value, _OPAQUE) or type(value).__module__ == "numpy":
        return
    if isinstance(value, dict):
        yield from ((item, f"{path}[{_short(key)}]", value, key) for key, item in dict.items(value))
    elif isinstance(value, _SEQUENCES):
        yield from _items(value, path)
    elif isinstance(value, types.FunctionType):
        yield from _function(value, path)
    elif isinstance(value, types.MethodType):
        yield from ((value.__self__, path, None, None), (value.__func__, f"{path}.{value.__func__.__name__}", None, None))
    elif isinstance(value, functools.partial):
        yield from ((value.func, path, None, None), (value.args, f"{path}.args", None, None), (value.keywords, f"{path}.keywords", None, None))
    elif isinstance(value, type):
        yield from _class(value, path)
        return
    yield from _attributes(value, path)


def _items(value: Iterable[Any], path: str) -> Iterator[Step]:
    listed = list(value)
    if len(listed) > _LONG and set(map(type, listed)) <= set(_PLAIN):
        return
    yield from ((item, f"{path}[{i}]", value, i) for i, item in enumerate(listed))


def _short(key: Any) -> str:
    return repr(key) if isinstance(key, (str, int)) else "..."


def _attributes(value: Any, path: str) -> Iterator[Step]:
    """Instance attributes, by the dict and the slots; and the class, where the user wrote it."""
    if isinstance(value, types.FunctionType):
        return
    held = _dict_of(value)
    yield from ((item, f"{path}.{name}" if type(name) is str else path, held, name) for name, item in list(held.items()))
    for kind in type(value).__mro__:
        for name, slot in list(vars(kind).items()):
            if isinstance(slot, types.MemberDescriptorType):
                yield from _slot(value, slot, f"{path}.{name}")
    yield type(value), path, None, None


def _dict_of(value: Any) -> dict[Any, Any]:
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return held if isinstance(held, dict) else {}


def _slot(value: Any, slot: types.MemberDescriptorType, path: str) -> Iterator[Step]:
    try:
        yield slot.__get__(value), path, value, slot.__name__
    except AttributeError:
        return


def _class(kind: type, path: str) -> Iterator[Step]:
    """Class attributes and the functions of a class that the user wrote; a library's are its own business."""
    for base in filter(_users, kind.__mro__):
        for name, item in list(vars(base).items()):
            plain = item.__func__ if isinstance(item, (staticmethod, classmethod)) else item
            plain = plain.fget if isinstance(plain, property) else plain
            if isinstance(plain, types.FunctionType):
                yield from _function(plain, f"{path}.{name}")
            elif isinstance(plain, (Tensor, dict, list, tuple, torch.nn.Module)) and not name.startswith("__"):
                yield plain, f"{path}.{name}", base, name


def _function(function: types.FunctionType, path: str) -> Iterator[Step]:
    """A function's closure and defaults; for the user's own, the module globals that it names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        yield from _cell(cell, f"{path}.{name}")
    yield from ((item, f"{path}(default)", None, None) for item in (function.__defaults__ or ()))
    yield from ((item, f"{path}({name}=)", function.__kwdefaults__, name) for name, item in (function.__kwdefaults__ or {}).items())
    yield from ((item, f"{path}.{name}", function.__dict__, name) for name, item in function.__dict__.items() if name != "__wrapped__")
    wrapped = function.__dict__.get("__wrapped__")
    if wrapped is not None:
        yield wrapped, path, None, None
    if _places.kind(function.__code__.co_filename) == _places.USER:
        yield from _globals(set(_names(function.__code__)), function.__globals__)


def _cell(cell: Any, path: str) -> Iterator[Step]:
    try:
        yield cell.cell_contents, path, cell, "cell_contents"
    except ValueError:  # not filled yet
        return


def _names(code: types.CodeType) -> Iterator[str]:
    """Every name that a function, or one inside it, may look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _globals(names: set[str], table: dict[str, Any]) -> Iterator[Step]:
    for name in names & table.keys():
        item = table[name]
        if isinstance(item, types.ModuleType):  # `settings.TABLE`: the names tell which of its globals
            inner = vars(item)
            if _by_user(item):
                yield from ((inner[part], f"{name}.{part}", inner, part) for part in names & inner.keys() if not _library(inner[part]))
        elif not _library(item):
            yield item, name, table, name


def _library(item: Any) -> bool:
    """Classes and functions of others lead into their libraries, not to the user's data."""
    return isinstance(item, (type, types.FunctionType)) and not _users(item)


def _users(item: Any) -> bool:
    return _by_user(sys.modules.get(getattr(item, "__module__", None) or ""))


def _by_user(module: Any) -> bool:
    """Whether a module is the user's own; a notebook's has no file."""
    file: str = getattr(module, "__file__", None) or ""
    return getattr(module, "__name__", "") == "__main__" or (bool(file) and _places.kind(file) == _places.USER)
