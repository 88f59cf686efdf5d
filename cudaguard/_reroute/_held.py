"""Find the GPU data that a loader's workers will inherit: whatever the dataset, collate_fn or worker_init_fn can reach.

Attributes, containers, closures, partials, bound methods, wrapped datasets, caches, weak references, generators' locals, what the user's own
classes have, and the module globals that the user's own functions name. Nothing of the user's is called: no property, no iterator.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from .. import _places

Tensor = torch.Tensor
_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), range, slice, torch.dtype, torch.Size, torch.memory_format, torch.layout)
_SEQUENCES = (list, tuple, set, frozenset, deque)
_OPAQUE = (types.ModuleType, types.FrameType, types.CodeType, types.TracebackType, type(NotImplemented), type(...))
_LONG = 256  # containers longer than this are swept first: walking the 300,000 samples of a file list takes seconds, each epoch
_PLAIN_TYPES = frozenset(_PLAIN)
_ENDS = (*_OPAQUE, type)  # a sweep goes no further; classes are looked at by name
_CODE = (types.FunctionType, types.MethodType, functools.partial)  # they lead where no referent does: to the globals that they name
_PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
_IN_C = frozenset(("builtins", "functools", "itertools", "operator"))  # only the garbage collector knows what their objects hold: caches, iterators
# What has a device and is no tensor. torch.Stream is new in 2.3, torch.Event in 2.5.
OTHERS: dict[str, Any] = {
    "generator": torch._C.Generator,
    **{name: getattr(holder, kind) for name, holder, kind in (
        ("stream", torch.cuda, "Stream"), ("any stream", torch, "Stream"), ("event", torch.cuda, "Event"), ("any event", torch, "Event"),
    ) if hasattr(holder, kind)},
}  # fmt: skip
_DEVICE = tuple(OTHERS.values())
_LOOKED_AT = (*_CODE, Tensor, *_DEVICE)
_WEAK = (weakref.ref, *_PROXIES)


class Held(NamedTuple):
    """A tensor, generator, stream or event of a GPU: where it was found, as a user would write it, and what holds it under which key."""

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
        value = _strong(value)
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen[id(value)] = value
        if _on_gpu(value):
            found.append(Held(value, path, holder, key))
        todo.extend(_inside(value, path))
    return found


def _strong(value: Any) -> Any:
    """What a weak reference leads to; anything else as it is.

    A proxy passes every question on, even isinstance's: its target's own method is asked whose it is.
    """
    kind = type(value)
    if kind not in _PROXIES:
        return weakref.ref.__call__(value) if issubclass(kind, weakref.ref) else value
    try:
        return value.__init__.__self__
    except Exception:  # it is dead, or has odd ways of its own
        return None


def _telling(value: Any) -> bool:
    """Whether a sweep is not enough: it is on a GPU, or is code."""
    return isinstance(value, _CODE) or _on_gpu(value)


def _on_gpu(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_cuda
    return isinstance(value, _DEVICE) and getattr(value.device, "type", "cuda") == "cuda"  # an event not yet recorded has none


def _inside(value: Any, path: str) -> Iterator[Step]:
    """What an object leads to."""
    if isinstance(value, _OPAQUE):
        return
    if type(value).__module__ == "numpy":
        yield from ((item, path, None, None) for item in _objects(value))
        return
    if isinstance(value, dict):
        yield from _entries(value, path)
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
    elif type(value).__module__ in _IN_C:
        yield from ((item, path, None, None) for item in gc.get_referents(value))
        yield from _generator(value, path)
    yield from _attributes(value, path)


def _generator(value: Any, path: str) -> Iterator[Step]:
    """What a generator that has begun has at hand."""
    frame = value.gi_frame if isinstance(value, types.GeneratorType) else None
    if frame is not None:
        yield from ((item, f"{path}.{name}", None, None) for name, item in frame.f_locals.items())
        yield from _named(frame.f_code, frame.f_globals)


def _objects(array: Any) -> list[Any]:
    """What an array of objects holds, or a record of one, as a list or tuple; the garbage collector does not know."""
    return [array.tolist()] if getattr(getattr(array, "dtype", None), "hasobject", False) and hasattr(array, "tolist") else []


def _entries(value: dict[Any, Any], path: str) -> Iterator[Step]:
    if len(value) > _LONG and (kinds := _swept(list(dict.values(value)))) is not None:
        yield from ((kind, path, None, None) for kind in kinds)
        return
    yield from ((item, f"{path}[{_short(key)}]", value, key) for key, item in dict.items(value))


def _items(value: Iterable[Any], path: str) -> Iterator[Step]:
    listed = list(value)
    if len(listed) > _LONG and (kinds := _swept(listed)) is not None:
        yield from ((kind, path, None, None) for kind in kinds)
        return
    yield from ((item, f"{path}[{i}]", value, i) for i, item in enumerate(listed))


def _swept(values: list[Any]) -> set[type] | None:
    """The classes of what is in there, at any depth, where none of it is on a GPU; None where it takes a closer look.

    A level at a time, at the garbage collector's speed: 400,000 objects in a tenth of a second. It knows of no path and no name.
    """
    kinds: set[type] = set()
    seen: set[int] = set()
    while values:
        here = set(map(type, values))
        if any(map(_telling, _of(values, here, _LOOKED_AT))):
            return None
        kinds.update(_of(values, here, (type,)))
        ends = _PLAIN_TYPES.union(kind for kind in here if issubclass(kind, _ENDS))
        fresh = {id(value): value for value in values if type(value) not in ends}
        inner = gc.get_referents(*(fresh[i] for i in fresh.keys() - seen))
        inner += map(_strong, _of(values, here, _WEAK))  # no referents of theirs, nor of arrays
        for array in _of(values, {kind for kind in here if kind.__module__ == "numpy"}, (object,)):
            inner += _objects(array)
        seen.update(fresh)
        values = inner
    return kinds


def _of(values: list[Any], kinds: set[type], wanted: tuple[type, ...]) -> list[Any]:
    """Those of some values that are of a wanted type. `kinds` are their types, which are few."""
    these = {kind for kind in kinds if issubclass(kind, wanted)}
    return [value for value in values if type(value) in these] if these else []


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
        for name, item in [(name, _strong(item)) for name, item in vars(base).items()]:
            plain = item.__func__ if isinstance(item, (staticmethod, classmethod)) else item
            plain = plain.fget if isinstance(plain, property) else plain
            if isinstance(plain, types.FunctionType):
                yield from _function(plain, f"{path}.{name}")
            elif not isinstance(plain, type) and not name.startswith("__"):
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
    yield from _named(function.__code__, function.__globals__)


def _named(code: types.CodeType, table: dict[str, Any]) -> Iterator[Step]:
    """The globals that a piece of code names; a module that it imports itself is named in full."""
    if _places.kind(code.co_filename) != _places.USER:
        return
    names, seen = set(_names(code)), {id(table)}
    yield from _globals(names, table, seen)
    yield from _globals(names, {name: sys.modules[name] for name in names & sys.modules.keys()}, seen)


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


def _globals(names: set[str], table: dict[str, Any], seen: set[int], path: str = "") -> Iterator[Step]:
    """`project.settings.TABLE`: the names tell which of a module's globals, and its modules' in turn."""
    for name in names & table.keys():
        item = _strong(table[name])
        if not isinstance(item, types.ModuleType):
            if not _library(item):
                yield item, path + name, table, name
        elif id(vars(item)) not in seen and _by_user(item):
            seen.add(id(vars(item)))
            yield from _globals(names, vars(item), seen, f"{path}{name}.")


def _library(item: Any) -> bool:
    """Classes and functions of others lead into their libraries, not to the user's data."""
    return isinstance(item, (type, types.FunctionType)) and not _users(item)


def _users(item: Any) -> bool:
    return _by_user(sys.modules.get(getattr(item, "__module__", None) or ""))


def _by_user(module: Any) -> bool:
    """Whether a module is the user's own; a notebook's has no file."""
    file: str = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
    return getattr(module, "__name__", "") == "__main__" or (bool(file) and _places.kind(file) == _places.USER)
