"""``torch.cuda.FloatTensor`` and its kin: constructors, types to convert to, classes to ask ``isinstance`` of, default tensor type;
and the constructor that follows the default type, ``torch.Tensor``."""

from __future__ import annotations

from typing import Any

import torch

from cudaguard._shadow._classes import Shadow, base_of, beside, is_shadow, tag
from cudaguard._shadow._devices import arrive
from cudaguard._shadow._patch import put, wrap
from cudaguard._shadow._tensor import KINDS

_plain_of: dict[str, Any] = {}  # "torch.cuda.FloatTensor" -> torch.FloatTensor
_default = {"cuda": False}  # is the default tensor type one of torch.cuda's? A forked child inherits the answer, as it does torch's own


class _Meta(type):
    _dtype: torch.dtype
    _plain: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._plain(*[arg.cpu() if is_shadow(arg) else arg for arg in args]).cuda(kwargs.get("device"))

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Shadow) and isinstance(value, torch.Tensor) and value.dtype is cls._dtype

    @property
    def dtype(cls) -> torch.dtype:
        return cls._dtype

    @property
    def is_cuda(cls) -> bool:
        return True


def _default_type(original: Any) -> Any:
    def set_default_tensor_type(t: Any, /) -> None:
        name = t if isinstance(t, str) else f"{t.__module__}.{t.__name__}"
        if name in _plain_of:
            original(_plain_of[name])
            _default["cuda"] = True
            torch.set_default_device("cuda")
        else:
            original(t)
            _default["cuda"] = False
            torch.set_default_device(None)

    return set_default_tensor_type


def _constructor(original: Any) -> Any:
    """``torch.Tensor(2, 3)`` knows no default device, only the default type, in C; and what it makes of another tensor is an alias."""

    def __new__(*args: Any, **kwargs: Any) -> Any:  # no other signature: dynamo compares it with its own words for this constructor
        cls, given = base_of(args[0]), args[1:]
        source = given[0] if given else kwargs.get("other")
        if _default["cuda"] and not isinstance(source, torch.Tensor):
            index = arrive(kwargs.pop("device", None) or "cuda")
            return tag(original(cls, *given, **kwargs), index)
        made = original(cls, *given, **kwargs)
        return beside(made, source) if is_shadow(source) else made

    return staticmethod(__new__)


def install() -> None:
    for dtype, kind in KINDS.items():
        name = f"{kind}Tensor"
        plain = getattr(torch, name, None)
        if plain is None:
            continue  # complex types have none
        made = _Meta(name, (), {"_dtype": dtype, "_plain": plain, "__module__": "torch.cuda"})
        _plain_of[f"torch.cuda.{name}"] = plain
        put(torch.cuda, name, made)
    wrap(torch, "set_default_tensor_type", _default_type)
    put(torch.Tensor, "__new__", _constructor(torch.Tensor.__new__))
