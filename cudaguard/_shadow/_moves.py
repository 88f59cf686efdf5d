"""Methods that take a tensor from one device to another: to, cuda, cpu, type, data, pin_memory."""

from __future__ import annotations

from typing import Any

import torch

from cudaguard._shadow import _tensor
from cudaguard._shadow._classes import Shadow, Tensor, base_of, is_shadow, place_of, tag
from cudaguard._shadow._devices import CPU, arrive, cuda_index
from cudaguard._shadow._dispatch import run
from cudaguard._shadow._patch import put, wrap
from cudaguard._shadow._state import settle, state

_TO = ("dtype", "non_blocking", "copy")  # what may follow the device, by position


def move(original: Any, self: Any, place: int | None, options: dict[str, Any]) -> Any:
    """The one mover. `original` is ``Tensor.to``; the device is the CPU whatever the caller said, the rest is kept."""
    here = place_of(self)
    if here != place:
        options["copy"] = True  # as crossing to another device makes a copy, so must this
    options["device"] = CPU
    result = run(original, (), (self,), options)
    return result if result is self else tag(_as_class_of(self, result), place)


def _as_class_of(self: Any, result: Any) -> Any:
    """A user's subclass of Tensor stays what it is, as it does in torch's own dispatch."""
    base = base_of(type(self))
    if base in (Tensor, torch.nn.Parameter) or type(result) is not Tensor or issubclass(base, torch.nn.Parameter):
        return result
    return _tensor.Plain.as_subclass(result, base)


def _to(original: Any) -> Any:
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else kwargs.get("device")
        if isinstance(self, Shadow) and len(args) == 1 and not kwargs and cuda_index(first) == self._place:
            return _stay(self)  # the commonest call of all, so by the shortest way
        if not (isinstance(self, Shadow) or isinstance(first, Shadow) or cuda_index(first) is not None or _holds_shadow(self)):
            return original(self, *args, **kwargs)
        if is_jagged(self):
            return _move_jagged(self, first, args, kwargs)
        options = _options(args, kwargs)
        return move(original, self, _target(self, options.pop("device", None)), options)

    return to


def _stay(self: Any) -> Any:
    """It is there already; whether it may be used here is asked all the same."""
    _tensor.ready(self, "torch.Tensor.to")
    state.policy.arrive()
    return self


def _options(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The three overloads of ``Tensor.to`` as keywords."""
    options = {name: value for name, value in kwargs.items() if value is not None or name == "device"}
    other = options.pop("other", None)
    names: tuple[str, ...] = ("device", *_TO)
    if args and isinstance(args[0], Tensor):
        other, args, names = args[0], args[1:], _TO[1:]
    elif args and isinstance(args[0], torch.dtype):
        names = _TO
    if other is not None:
        options.update(device=other.device, dtype=other.dtype)
    options.update((name, value) for name, value in zip(names, args, strict=False) if value is not None)
    return options


def _target(self: Any, device: Any) -> int | None:
    if device is None:
        if isinstance(self, Shadow):
            _tensor.ready(self, "torch.Tensor.to")
        return place_of(self)
    _touch(self, "torch.Tensor.to")
    return arrive(device)


def _touch(self: Any, call: str) -> None:
    if isinstance(self, Shadow):
        _tensor.ready(self, call)


def _cuda(original: Any) -> Any:
    to = _tensor.Plain.to

    def cuda(self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
        wanted = "cuda" if device is None else device
        if type(wanted) is not int and cuda_index(wanted) is None:
            raise RuntimeError("Invalid device, must be cuda device")
        if is_jagged(self):
            return _move_jagged(self, wanted, (), {})
        _touch(self, "torch.Tensor.cuda")
        return move(to, self, arrive(wanted), {} if memory_format is None else {"memory_format": memory_format})

    return cuda


def _cpu(original: Any) -> Any:
    to = _tensor.Plain.to

    def cpu(self: Any, memory_format: Any = None) -> Any:
        if is_jagged(self):
            return _move_jagged(self, "cpu", (), {})
        if not isinstance(self, Shadow):
            return original(self) if memory_format is None else original(self, memory_format=memory_format)
        _tensor.ready(self, "torch.Tensor.cpu")
        return move(to, self, None, {} if memory_format is None else {"memory_format": memory_format})

    return cpu


def _holds_shadow(value: Any) -> bool:
    return type(value) is not Tensor and isinstance(getattr(value, "_values", None), Shadow)


def is_jagged(value: Any) -> bool:
    return not isinstance(value, Shadow) and isinstance(getattr(value, "_offsets", None), Tensor)


def _from_dlpack(original: Any) -> Any:
    def from_dlpack(ext_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if is_shadow(ext_tensor):
            return ext_tensor.detach()
        return original(ext_tensor, *args, **kwargs)

    return from_dlpack


def _move_jagged(self: Any, device: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from cudaguard._shadow import _nested

    return _nested.move(self, device, args, kwargs)


def _type(original: Any) -> Any:
    kinds = {name: dtype for dtype, name in _tensor.KINDS.items()}

    def type_(self: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if dtype is None:
            return _tensor.type_name(self) if isinstance(self, Shadow) else original(self)
        name = dtype if isinstance(dtype, str) else f"{getattr(dtype, '__module__', '')}.{getattr(dtype, '__name__', '')}"
        if name.startswith("torch.cuda."):
            return self.to(device="cuda", dtype=kinds[name.rpartition(".")[2].removesuffix("Tensor")])
        if is_shadow(self) and name.startswith("torch.") and name.endswith("Tensor"):
            return self.to(device="cpu", dtype=kinds[name.rpartition(".")[2].removesuffix("Tensor")])
        return self.to(dtype) if is_shadow(self) else original(self, dtype, non_blocking, **kwargs)

    return type_


def pinned(storage: Any) -> bool:
    return bool(getattr(storage, "_pinned", False))


def _pin_memory(original: Any) -> Any:
    def pin_memory(self: Any, device: Any = None) -> Any:
        if isinstance(self, Shadow):
            if isinstance(self, Tensor) and self.is_nested:
                raise NotImplementedError("Could not run 'aten::is_pinned' with arguments from the 'NestedTensorCUDA' backend.")
            raise RuntimeError(f"cannot pin '{_tensor.type_name(self)}' only dense CPU tensors can be pinned")
        settle()
        state.policy.raw("torch.Tensor.pin_memory")
        if is_jagged(self):
            return _move_jagged(self, "pinned", (), {})
        return self if self.is_pinned() else pin(self.clone())

    return pin_memory


def pin(fresh: Any) -> Any:
    """Mark a fresh tensor as pinned. The mark is on the storage, whose Python object torch keeps as long as the memory lives."""
    for part in _parts(fresh):
        part.untyped_storage()._pinned = True
    return fresh


def _parts(value: Any) -> list[Any]:
    if is_jagged(value):
        return [value._values, value._offsets]
    if value.layout is torch.sparse_coo:
        return [value._indices(), value._values()]
    if value.layout is not torch.strided:
        return [value.values()]
    return [value]


def _is_pinned(original: Any) -> Any:
    def is_pinned(self: Any, device: Any = None) -> bool:
        if isinstance(self, Shadow):
            return False
        settle()
        state.policy.ask("torch.Tensor.is_pinned")
        return all(pinned(part.untyped_storage()) for part in _parts(self))

    return is_pinned


def _parameter(original: Any) -> Any:
    parameter = torch.nn.Parameter

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if not isinstance(data, Shadow) or base_of(type(data)) not in (Tensor, parameter):
            return original(cls, data, requires_grad)
        # torch would take the way for custom tensors, which gives no Parameter but a tensor with a flag.
        with torch._C.DisableTorchFunctionSubclass():
            made: Any = _tensor.Plain._make_subclass(base_of(cls), data, requires_grad)
        return tag(made, data._place)

    return new


def install() -> None:
    for name, make in {"to": _to, "cuda": _cuda, "cpu": _cpu, "type": _type, "pin_memory": _pin_memory, "is_pinned": _is_pinned}.items():
        wrap(Tensor, name, make)
    put(Tensor, "data", property(_tensor.Plain.data.__get__, _tensor.set_data))
    wrap(torch, "from_dlpack", _from_dlpack)
    made = _parameter(torch.nn.Parameter.__new__)
    put(torch.nn.Parameter, "__new__", staticmethod(made))
