"""The classes of tensors and storages that live on the CPU and say that they live on ``cuda:i``.

A tensor becomes one by assigning its ``__class__``: the Python object stays the same, so identity, ``.grad is .grad``, optimiser
states keyed by parameter and views all stay right, which no wrapper manages. Each (class, device, era) has a class of its own:
the place is then a class attribute, costs no instance dict (torch pickles a tensor that has one differently), and two arguments of
the same class are known to be on the same device without looking.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from cudaguard._shadow._state import state

T = TypeVar("T")
Tensor = torch.Tensor
_made: dict[tuple[type, int, int], type] = {}


class Shadow:
    """What every shadow class has; `_stands_for` is the ordinary class it stands for."""

    __slots__ = ()  # a dict of its own would make the layout differ, and Python would refuse the assignment

    _place: int
    _era: int
    _stands_for: type
    _device: torch.device
    _plain: type  # the class that results of operations get
    _calm: frozenset[type]  # what may be in a list of arguments without a closer look: one class is one place


def is_shadow(value: object) -> bool:
    return isinstance(value, Shadow)


def place_of(value: object) -> int | None:
    """The device index of a shadow, None for anything else."""
    return value._place if isinstance(value, Shadow) else None


def base_of(kind: type) -> type:
    """The ordinary class behind a shadow class."""
    return kind._stands_for if issubclass(kind, Shadow) else kind


HELD = -1  # the era of inherited data that somebody made usable in this process: the first use brings it into the present


def class_for(base: type, place: int, era: int | None = None) -> type:
    """The shadow class of an ordinary class on a device, in this era unless another is said."""
    key = (base, place, state.era if era is None else era)
    return _made.get(key) or _make(*key)


def _make(base: type, place: int, era: int) -> type:
    body: dict[str, Any] = {"_place": place, "_era": era, "_stands_for": base, "_device": torch.device("cuda", place)}
    # Users (and torch's own messages) print the class, so it goes by the name of the one it stands for.
    body.update(__module__=base.__module__, __qualname__=base.__qualname__, __doc__=base.__doc__)
    made = type(base)(base.__name__, _bases(base), body)
    _made[(base, place, era)] = made
    if issubclass(base, Tensor):
        made._calm = frozenset((made, int, slice, type(None)))  # type: ignore[attr-defined]
        made._plain = made if _breeds(base) else class_for(Tensor, place, era)  # type: ignore[attr-defined]
    for listener in on_new_class:
        listener(made)
    return made


def _breeds(base: type) -> bool:
    """Are the results of operations of this class too? So torch has it for subclasses, but for parameters and those that say otherwise."""
    own: Any = base
    return not issubclass(base, torch.nn.Parameter) and own.__torch_function__.__func__ is _default_function


_default_function = Tensor.__torch_function__.__func__  # type: ignore[attr-defined]


def _bases(base: type) -> tuple[type, ...]:
    for known, mixin in stand_ins.items():
        if issubclass(base, known):
            return (mixin,) if base is known else (mixin, base)
    raise TypeError(f"no shadow for {base}")


stand_ins: dict[type, type] = {}  # ordinary class -> what shadows it; filled by their modules, the most derived class first
on_new_class: list[Callable[[type], None]] = []


def hold(value: T, place: int) -> T:
    """Say that a tensor is on ``cuda:place`` and was inherited, but has data that can be used here: its first use is told to the policy."""
    value.__class__ = class_for(base_of(type(value)), place, HELD)
    return value


def waken(value: Any, call: str) -> None:
    """A shadow of another era is used. Held data comes into this era; all else is the policy's to refuse."""
    if value._era != HELD:
        state.policy.inherited(call)
        raise AssertionError("the policy let an inherited tensor pass")
    state.policy.held(call)
    tag(value, value._place)


def tag(value: T, place: int | None) -> T:
    """Say that a tensor or storage is on ``cuda:place`` (None: on the CPU after all). In place; returns the value."""
    kind = type(value)
    base = base_of(kind)
    wanted = base if place is None else class_for(base, place)
    if wanted is not kind:
        value.__class__ = wanted
    return value


def beside(value: T, owner: Any) -> T:
    """Say that a tensor or storage is where its owner is, in the owner's era: what looks at inherited memory is inherited itself."""
    value.__class__ = class_for(base_of(type(value)), owner._place, owner._era)
    return value


def tag_all(value: Any, place: int) -> Any:
    """Tag every plain tensor inside a result: tuples, lists, named tuples and dicts are not rebuilt."""
    kind = type(value)
    if kind is Tensor or kind is torch.nn.Parameter:
        tag(value, place)
    elif issubclass(kind, (tuple, list)):
        for item in value:
            tag_all(item, place)
    elif issubclass(kind, dict):
        for item in value.values():
            tag_all(item, place)
    elif issubclass(kind, Tensor) and not issubclass(kind, Shadow):
        tag_foreign(value, place)
    return value


def tag_foreign(value: Tensor, place: int) -> None:
    """A tensor of somebody's subclass: wrapper subclasses (NestedTensor) are tagged inside, ordinary ones as themselves."""
    inner = [getattr(value, name, None) for name in WRAPPED]
    if any(isinstance(part, Tensor) for part in inner):
        tag_all([part for part in inner if part is not None], place)
    elif type(value).__torch_dispatch__ is Tensor.__torch_dispatch__:
        tag(value, place)


WRAPPED = ("_values", "_offsets", "_lengths")  # where torch.nested keeps the data of a jagged tensor
