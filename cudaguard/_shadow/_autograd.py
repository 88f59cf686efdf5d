"""The engine runs in C++ on plain tensors; user code that it calls back is handed shadows again."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import torch

from cudaguard._shadow import _dispatch, _mixing
from cudaguard._shadow._classes import Shadow, place_of, tag_all
from cudaguard._shadow._mixing import elsewhere, leaves
from cudaguard._shadow._patch import put, wrap

_saved: Any = torch._C._FunctionBase.saved_tensors
_PLACE = "_shadow_place"
_dispatching: Any = getattr(torch._C, "_EnableTorchFunction", contextlib.nullcontext)


def _place_among(values: Any) -> int | None:
    return next((leaf._place for leaf in leaves(values) if isinstance(leaf, Shadow)), None)


def _apply(original: Any) -> Any:
    """`original` is a class method still unbound: Python's own up to 2.13, C's from 2.14 on, which has no ``__func__``."""

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        place = _place_among((args, kwargs))
        result = original.__get__(None, cls)(*args, **kwargs)
        if place is None:
            return result
        for leaf in leaves(result if isinstance(result, (list, tuple)) else (result,)):
            _remember(leaf, cls, place)
        return result

    return apply


def _remember(leaf: Any, cls: Any, place: int) -> None:
    """An output belongs to the device, unless forward moved it away itself; its node remembers where its arguments were."""
    node = leaf.grad_fn
    if isinstance(node, cls._backward_cls):
        setattr(node, _PLACE, place)


def _called_back(original: Any) -> Any:
    def apply(self: Any, *args: Any) -> Any:
        place = getattr(self, _PLACE, None)
        if place is None:
            return original(self, *args)
        tag_all(args, place)
        with _dispatching():
            return original(self, *args)

    return apply


def _saved_tensors(self: Any) -> Any:
    found = _saved.__get__(self)
    place = getattr(self, _PLACE, None)
    return found if place is None else tag_all(found, place)


def _grad(cls: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.autograd.grad``: outputs and inputs may be on different devices, and each gradient is where its input is."""
    inputs = args[1] if len(args) > 1 else kwargs["inputs"]
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    found = _dispatch.run(func, types, args, kwargs)
    for wanted, grad in zip(inputs, found, strict=True):
        place = place_of(wanted)
        if place is not None and grad is not None:
            tag_all(grad, place)
    return found


def _checked(original: Any) -> Any:
    """The gradients a user gives to ``backward`` and ``grad``: the engine compares their devices, and here both are CPU tensors."""

    def _make_grads(outputs: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
        for index, (output, grad) in enumerate(zip(outputs, grads, strict=False)):
            if isinstance(output, torch.Tensor) and isinstance(grad, torch.Tensor) and elsewhere(grad, output):
                raise RuntimeError(f"invalid gradient at index {index} - expected device {output.device} but got {grad.device}")
        return original(outputs, grads, *args, **kwargs)

    return _make_grads


def install() -> None:
    wrap(torch.autograd, "_make_grads", _checked)
    _mixing.free.add(torch.autograd.backward)  # `_make_grads` checks it
    _dispatch.special[torch.autograd.grad] = _grad
    function = torch.autograd.function
    put(function.Function, "apply", classmethod(_apply(inspect.getattr_static(function.Function, "apply"))))
    for name in ("apply", "apply_boxed"):
        wrap(function.BackwardCFunction, name, _called_back)
    put(function.BackwardCFunction, "saved_tensors", property(_saved_tensors))
