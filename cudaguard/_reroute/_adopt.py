"""In a forked worker: inherited GPU objects are given the CPU data that the parent copied, and say where they belong as before.

The objects stay the same, so whatever holds them need not be known. Facts (measured, see the tests): `t.data = cpu` works for dense
tensors, parameters and buffers; for nested tensors it is an error and for sparse ones it hangs, so those are swapped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .._shadow import place_of
from .._shadow._classes import HELD, base_of, class_for, hold
from .._shadow._generators import make as make_generator
from . import _copies
from ._copies import Copy
from ._held import OTHERS, Held
from ._reduce import Dispatchless

Tensor = torch.Tensor
Plain: Any = torch._C.TensorBase
OVER = HELD - 1  # the era of inherited data that was too much to copy: its first use is refused


def adopt(copies: list[Copy]) -> None:
    """Give every inherited object its data; dense tensors first, since others are made of them."""
    for copy in sorted(copies, key=lambda copy: not _copies.dense(copy.held.data)):
        _give(copy.held, copy.cpu)


def withhold(tensors: Iterable[Tensor]) -> None:
    """Inherited data that was not copied: shape and device can be asked for as before, anything else is the policy's to refuse."""
    for tensor in tensors:
        tensor.__class__ = class_for(base_of(type(tensor)), index(tensor), OVER)


def _give(held: Held, cpu: Any) -> None:
    data = held.data
    if not isinstance(data, Tensor):
        _replace(held, next(make(data, cpu) for name, make in STAND_INS.items() if isinstance(data, OTHERS.get(name, ()))))
    elif cpu is None:
        _wrapper(data)
    elif _copies.dense(data):
        _dense(data, cpu)
    else:
        _swap(held, cpu)


def index(data: Any) -> int:
    """The device of an inherited object."""
    place = place_of(data)
    return place if place is not None else data.device.index


def _dense(tensor: Tensor, cpu: Tensor) -> None:
    place = index(tensor)
    with Dispatchless():
        Plain.grad.__set__(tensor, None)  # the gradient stayed on the GPU
        Plain.data.__set__(tensor, _uncounted(cpu) if tensor.is_inference() else cpu)
    hold(tensor, place)


def _uncounted(cpu: Tensor) -> Tensor:
    """The same memory, as a tensor of inference mode: torch gives one of those no data that counts its writes."""
    with torch.inference_mode():
        return torch.empty(0, dtype=cpu.dtype).set_(cpu.untyped_storage(), cpu.storage_offset(), cpu.shape, cpu.stride())


def _swap(held: Held, cpu: Tensor) -> None:
    tensor, place = held.data, index(held.data)
    cpu.requires_grad_(tensor.requires_grad)
    tensor.__class__ = base_of(type(tensor))
    try:
        torch.utils.swap_tensors(tensor, cpu)  # type: ignore[no-untyped-call]
        hold(tensor, place)
    except (AttributeError, RuntimeError):  # torch 2.2 has no swap_tensors; or something else in C++ holds it: put another one in its place
        _replace(held, hold(cpu, place))


def _wrapper(tensor: Any) -> None:
    """A jagged tensor's parts are inherited tensors and have their data already; the wrapper around them is told that it is no GPU's."""
    values = getattr(tensor, "_values", None)
    kind = type(tensor)
    with Dispatchless():
        if values is None or Plain.device.__get__(tensor).type == "cpu" or getattr(values, "_era", None) == OVER:
            return
        donor = kind(_plain(values), _plain(tensor._offsets), lengths=_plain(tensor._lengths), _ragged_idx=tensor._ragged_idx)
        Plain.data.__set__(tensor, donor)


def _plain(part: Tensor | None) -> Tensor | None:
    return None if part is None else part.detach()


def _generator(old: Any, seed: int) -> Any:
    made = make_generator(index(old))
    made.manual_seed(seed)
    return made


def _stream(old: Any, cpu: None) -> Any:
    kind: Any = torch.cuda.Stream if isinstance(old, OTHERS["stream"]) else torch.Stream
    return kind(stream_id=old.stream_id, device_index=old.device_index, device_type=old.device_type)


def _event(old: Any, cpu: None) -> Any:
    """One that measures time: whether the parent's does, it does not say."""
    kind: Any = torch.cuda.Event if isinstance(old, OTHERS["event"]) else torch.Event
    return kind(enable_timing=True)


# By the names of `_held.OTHERS`. torch's classes are the shadow's here: what is made says yes to everything, and to isinstance too.
STAND_INS: dict[str, Callable[[Any, Any], Any]] = {
    "generator": _generator, "stream": _stream, "any stream": _stream, "event": _event, "any event": _event,
}  # fmt: skip


def _replace(held: Held, new: Any) -> None:
    """Put another object where the inherited one is held. A place that cannot be written keeps it: its use is then refused."""
    with contextlib.suppress(TypeError, AttributeError):
        if isinstance(held.holder, (dict, list)):
            held.holder[held.key] = new
        elif held.holder is not None:
            setattr(held.holder, held.key, new)
