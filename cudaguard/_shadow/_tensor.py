"""ShadowTensor and ShadowParameter: what differs from an ordinary tensor when Python asks it directly."""

from __future__ import annotations

from typing import Any

import torch

from cudaguard._shadow import _dispatch, _tables
from cudaguard._shadow._classes import (
    Shadow,
    Tensor,
    base_of,
    beside,
    class_for,
    place_of,
    stand_ins,
    tag,
    waken,
)
from cudaguard._shadow._errors import not_simulated, other_grad
from cudaguard._shadow._patch import dress
from cudaguard._shadow._state import settle, state

Plain: Any = torch._C.TensorBase
lib: Any = torch
_grad = Plain.grad
_run = _dispatch.run

KINDS = {
    torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16", torch.uint8: "Byte",
    torch.int8: "Char", torch.int16: "Short", torch.int32: "Int", torch.int64: "Long", torch.bool: "Bool",
    torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
}  # fmt: skip


def ready(self: Any, call: str) -> None:
    """For the methods that do not go through dispatch: is this tensor ours to use?"""
    settle()
    if self._era != state.era:
        waken(self, call)


def type_name(self: Any) -> str:
    """``torch.cuda.FloatTensor`` and the like."""
    layout = ".sparse" if self.is_sparse else ""
    return f"torch.cuda{layout}.{KINDS.get(self.dtype, str(self.dtype))}Tensor"


def set_data(self: Any, value: Any) -> None:
    """``x.data = y`` takes x to the device of y."""
    with torch._C.DisableTorchFunctionSubclass():
        Plain.data.__set__(self, value)
    if base_of(type(self)) in (Tensor, torch.nn.Parameter) or isinstance(self, Shadow):
        tag(self, place_of(value))
    elif isinstance(getattr(value, "_offsets", None), Tensor):
        self._values, self._offsets, self._lengths = value._values, value._offsets, value._lengths  # a jagged tensor


def _text(self: Any, *, tensor_contents: Any = None) -> str:
    ready(self, "torch.Tensor.__repr__")
    alias = self if type(self)._stands_for is Tensor else _alias(self)
    text: str
    with torch._C.DisableTorchFunctionSubclass():
        text = lib._tensor_str._str(alias, tensor_contents=tensor_contents)
    return "t" + text[1:] if text.startswith("Tensor(") else text  # torch writes the class's name unless it is its own


def _alias(self: Any) -> Any:
    """The same data as a plain-looking shadow, for printing."""
    with torch._C.DisableTorchFunctionSubclass():
        alias = Plain.detach(self).requires_grad_(self.requires_grad)
    alias.__class__ = class_for(Tensor, self._place)
    return alias


def _parameter_text(self: Any, *, tensor_contents: Any = None) -> str:
    return "Parameter containing:\n" + _text(self, tensor_contents=tensor_contents)


class ShadowTensor(Shadow, Tensor):
    """A CPU tensor that is on ``cuda:i`` for all who ask."""

    __torch_function__ = classmethod(_dispatch.dispatch)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._device

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def get_device(self) -> int:
        return self._place

    @property
    def grad(self) -> Any:
        """The engine accumulates plain tensors here; they are told where they are when somebody looks."""
        with torch._C.DisableTorchFunctionSubclass():
            found = _grad.__get__(self)
        return found if found is None or isinstance(found, Shadow) else beside(found, self)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if isinstance(value, Tensor) and place_of(value) != self._place:
            raise other_grad(value, self)
        with torch._C.DisableTorchFunctionSubclass():
            _grad.__set__(self, value)

    @grad.deleter
    def grad(self) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            _grad.__delete__(self)

    @property
    def data(self) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return beside(Plain.data.__get__(self), self)

    @data.setter
    def data(self, value: Any) -> None:
        set_data(self, value)

    def backward(self, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None) -> None:
        # Not through dispatch: that switches subclass dispatch off, also for hooks and Functions that the engine calls.
        ready(self, "torch.Tensor.backward")
        torch.autograd.backward(self, gradient, retain_graph, create_graph, inputs=inputs)

    def register_hook(self, hook: Any) -> Any:
        place = self._place
        with torch._C.DisableTorchFunctionSubclass():
            return lib.Tensor.register_hook(self, lambda grad: hook(tag(grad, place)))

    def numpy(self, *, force: bool = False) -> Any:
        """torch looks at the device before it asks anybody: an inherited tensor is refused as any other."""
        if force:
            return self.detach().cpu().resolve_conj().resolve_neg().numpy()
        raise TypeError(f"can't convert {self._device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.")

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()

    __repr__: Any = _text

    def __format__(self, spec: str) -> str:
        # torch formats the number only if the class is its own; the class of this one merely stands for that.
        if self.dim() == 0 and self._stands_for is Tensor:
            return format(self.item(), spec)
        return object.__format__(self, spec)

    def __reduce_ex__(self, proto: Any) -> Any:
        """As torch reduces its own class: no trace of the shadow, only a storage that says "cuda:i"."""
        ready(self, "torch.Tensor.__reduce_ex__")
        with torch._C.DisableTorchFunctionSubclass():
            base: Any = base_of(type(self))
            if base is not Tensor and base.__reduce_ex__ is not Tensor.__reduce_ex__:
                return base.__reduce_ex__(self, proto)
            func, args = lib.Tensor._reduce_ex_internal(self, proto)
            kept = lib._utils._get_obj_state(self)
            if base is Tensor and not kept:
                return func, args
            return lib._tensor._rebuild_from_type_v2, (func, base, args, kept)

    def untyped_storage(self) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return beside(Plain.untyped_storage(self), self)

    def as_subclass(self, cls: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return tag(Plain.as_subclass(self, base_of(cls)), self._place)

    @property
    def __cuda_array_interface__(self) -> Any:
        raise not_simulated("__cuda_array_interface__", "other CUDA libraries need a real GPU; use .cpu().numpy()")

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        raise not_simulated("DLPack export of a CUDA tensor", "use .cpu() first")

    def is_shared(self) -> bool:
        return True  # as torch says of every CUDA tensor

    def share_memory_(self) -> Any:
        return self

    def record_stream(self, stream: Any) -> None:
        ready(self, "torch.Tensor.record_stream")


def _property(name: str) -> property | None:
    """Metadata read without dispatch: nothing to check, nothing to tag, and asked all the time."""
    plain = getattr(Plain, name, None)
    if plain is None or not hasattr(plain, "__get__"):
        return None
    read, write = plain.__get__, getattr(plain, "__set__", None)

    def set_(self: Any, value: Any) -> None:
        _run(write, (), (self, value), {})

    return property(lambda self: _run(read, (), (self,), {}), set_)


def _method(name: str) -> Any:
    plain = getattr(Tensor, name, None)
    if plain is None:
        return None

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _run(plain, (), (self, *args), kwargs)

    return dress(method, plain)


def _shorten() -> None:
    for names, make in ((_tables.READ_PROPERTIES, _property), (_tables.READ_METHODS, _method)):
        for name in names:
            made = make(name)
            if made is not None:
                setattr(ShadowTensor, name, made)


_shorten()


class ShadowParameter(ShadowTensor, torch.nn.Parameter):
    def __new__(cls, data: Any = None, requires_grad: bool = True) -> Any:
        return torch.nn.Parameter(data, requires_grad)

    __repr__: Any = _parameter_text


stand_ins[torch.nn.Parameter] = ShadowParameter
stand_ins[Tensor] = ShadowTensor
