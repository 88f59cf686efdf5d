"""Jagged nested tensors: a Python wrapper around ordinary tensors, so the tensors inside are the shadows.

The wrapper dispatches by itself, past ours; what comes out of it is told its place from what went in.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

import torch

from cudaguard._shadow._classes import Shadow, Tensor, place_of, tag_all
from cudaguard._shadow._devices import CPU, Device, arrive
from cudaguard._shadow._errors import two_devices
from cudaguard._shadow._mixing import leaves
from cudaguard._shadow._patch import put
from cudaguard._shadow._tensor import Plain, ready

_module: Any
try:
    _module = importlib.import_module("torch.nested._internal.nested_tensor")
except ImportError:  # before jagged nested tensors
    _module = None


_inside = threading.local()


def _new(original: Any) -> Any:
    def new(cls: Any, values: Any, offsets: Any, **kwargs: Any) -> Any:
        if type(values) is Tensor and isinstance(offsets, Shadow) and getattr(_inside, "place", None) is not None:
            tag_all(values, offsets._place)  # made by an operation inside the wrapper's own dispatch, which runs past ours
        return original(cls, values, offsets, **kwargs)

    return new


def _on_cpu(original: Any) -> Any:
    """torch makes a wrapper on the device of its values, and there is no such device: it becomes a CPU one, and asks its values where it is."""

    def _make_wrapper_subclass(*args: Any, **kwargs: Any) -> Any:
        if isinstance(kwargs.get("device"), Device):
            kwargs["device"] = _real(kwargs["device"])
        return original(*[_real(arg) if isinstance(arg, Device) else arg for arg in args], **kwargs)

    return _make_wrapper_subclass


def _real(device: torch.device) -> torch.device:
    return CPU if device.type == "cuda" else device


def _place_in(func: Any, args: Any, kwargs: Any) -> int | None:
    """Where the jagged tensors and shadows among the arguments are; refuses two places."""
    found: int | None = None
    plain = False
    for leaf in leaves((args, kwargs or {})):
        jagged = isinstance(leaf, _module.NestedTensor)
        inner = _values_of(leaf) if jagged else leaf
        place = place_of(inner)
        if place is None:
            plain = plain or jagged
            continue
        ready(inner, "torch.nested")
        if found is not None and place != found:
            raise two_devices(Device("cuda", found), Device("cuda", place))
        found = place
    if plain and found is not None and not any(word in str(func) for word in ("_nested_view", "copy_", "_to_copy")):
        raise two_devices(Device("cuda", found), CPU)  # (a view is made with a CPU tensor as its pattern)
    return found


def _function(original: Any) -> Any:
    plain = original.__func__

    def __torch_function__(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in METADATA:
            return plain(cls, func, types, args, kwargs)
        place = _place_in(func, args, kwargs)
        before, _inside.place = getattr(_inside, "place", None), place
        try:
            result = plain(cls, func, types, args, kwargs)
        finally:
            _inside.place = before
        return result if place is None else tag_all(result, place)

    return classmethod(__torch_function__)


METADATA = {getattr(Tensor, name).__get__ for name in ("shape", "dtype", "layout", "requires_grad", "is_nested", "grad_fn", "is_leaf")}


def _values_of(self: Any) -> Any:
    return self.__dict__.get("_values")


def _device() -> property:
    plain = Plain.device.__get__

    def device(self: Any) -> Any:
        values = _values_of(self)
        return values._device if isinstance(values, Shadow) else plain(self)

    return property(device)


def move(self: Any, device: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A jagged tensor to another device, with the same ragged size as torch's own ``to`` keeps."""
    if device == "pinned":
        return _rebuild(self, lambda part: part.pin_memory(), {})
    if isinstance(device, Tensor):
        device = device.device
    if isinstance(device, torch.dtype) or device is None:
        place, args = place_of(_values_of(self)), (device, *args[1:])
    else:
        place, args = arrive(device), args[1:]
    dtype = next((arg for arg in (*args, kwargs.get("dtype")) if isinstance(arg, torch.dtype)), None)
    target = CPU if place is None else Device("cuda", place)
    return _rebuild(self, lambda part: part.to(device=target), {"dtype": dtype})


def _rebuild(self: Any, carry: Any, options: dict[str, Any]) -> Any:
    values = self.values() if self.requires_grad else self._values  # values() keeps the history
    values = carry(values)
    if options.get("dtype") is not None:
        values = values.to(options["dtype"])
    source = self._offsets if self._lengths is None else self._lengths
    offsets = carry(self._offsets)
    lengths = None if self._lengths is None else carry(self._lengths)
    registry = getattr(_module, "_tensor_symint_registry", None)  # since 2.3: two tensors of one raggedness share an entry
    if registry is not None:
        registry[offsets if lengths is None else lengths] = registry[source]
    cache = dict(getattr(self, "_metadata_cache", {}))
    if values.requires_grad:
        view = _module.nested_view_from_values_offsets_lengths if lengths is not None else _module.nested_view_from_values_offsets
        parts = (values, offsets) if lengths is None else (values, offsets, lengths)
        return view(*parts, ragged_idx=self._ragged_idx)
    return _module.NestedTensor(values, offsets, lengths=lengths, _ragged_idx=self._ragged_idx, _metadata_cache=cache)


def install() -> None:
    if _module is None:
        return
    put(Tensor, "_make_wrapper_subclass", staticmethod(_on_cpu(Tensor._make_wrapper_subclass)))
    kind = _module.NestedTensor
    put(kind, "__new__", staticmethod(_new(kind.__new__)))
    for name in ("__torch_function__", "__torch_dispatch__"):
        put(kind, name, _function(getattr(kind, name)))
    put(kind, "device", _device())
    put(kind, "is_cuda", property(lambda self: isinstance(_values_of(self), Shadow)))
    put(kind, "get_device", lambda self: -1 if place_of(_values_of(self)) is None else place_of(_values_of(self)))
