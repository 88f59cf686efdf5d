"""What crosses the queue in place of an output that has CUDA data in it: the output pickled, its dense tensors on the CPU beside it.

Pickled in the worker's main thread, where an error can still become that batch's error. Any object that pickles may be in
it, with whatever it shares: the tensors inside are all that is different. They travel as PyTorch's tensors do, in shared memory.
"""

from __future__ import annotations

import io
import pickle
import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from .._shadow import Shadow, state, tag
from .._shadow._classes import HELD, waken
from . import Crossing, _delivery, _memory
from ._delivery import Place
from ._reduce import detached, fragile, reduce

Tensor = torch.Tensor
_NO_PINS = (type, torch.UntypedStorage, torch.TypedStorage)  # have the method, and are data
_open = threading.local()


class Parcel(Crossing):
    """An output on its way: `blob` is its pickle, `tensors` its dense tensors, `devices` where each belongs (None: the CPU).

    `places` are the lines that asked for the GPU while this batch was made. `pins`: there is an object in it that pins itself.
    """

    __slots__ = ("blob", "devices", "pins", "places", "tensors")

    def __init__(self, blob: bytes, tensors: list[Tensor], devices: list[int | None], places: tuple[Place, ...] = (), pins: bool = False) -> None:
        self.blob, self.tensors, self.devices, self.places, self.pins = blob, tensors, devices, places, pins

    def pin_memory(self, device: Any = None) -> Parcel:
        """What torch's pin thread calls: the same, in pinned memory."""
        pinned = Parcel(self.blob, _memory.moved(self.tensors, Tensor.pin_memory), self.devices, self.places)
        return (pinned._by_itself(device) if self.pins else None) or pinned

    def _by_itself(self, device: Any) -> Parcel | None:
        """Pinned as torch does it, which asks objects to pin themselves: those may do more. Still on the CPU, since no GPU data can be pinned.

        What is bound for a device is known again by its memory, pinned already. None where that fails: some is gone, or it does not pickle now.
        """
        from torch.utils.data._utils.pin_memory import pin_memory

        whole = pin_memory(self._opened(self.tensors), device)  # type: ignore[no-untyped-call]
        try:
            blob, packer = _packed(whole)
        except (pickle.PicklingError, TypeError, AttributeError, ValueError):
            return None
        bound = {_memory.key(tensor): there for tensor, there in zip(self.tensors, self.devices, strict=True) if there is not None}
        keys = [_memory.key(tensor) for tensor in packer.tensors]
        return Parcel(blob, on_cpu(packer.tensors), [bound.get(key) for key in keys], self.places) if bound.keys() <= set(keys) else None

    def delivered(self) -> Any:
        """The output, each tensor on its device. The copies run on the current stream of the thread that asks for the batch."""
        _delivery.counted(self.places, self.size())
        return self._opened(self._delivered())

    def _opened(self, tensors: list[Tensor]) -> Any:
        outer = getattr(_open, "tensors", None)
        _open.tensors = tensors
        try:
            return pickle.loads(self.blob)
        finally:
            _open.tensors = outer

    def _delivered(self) -> list[Tensor]:
        found = list(self.tensors)
        for device in set(self.devices) - {None}:
            rows = [i for i, there in enumerate(self.devices) if there == device]
            for i, tensor in zip(rows, _memory.moved([found[i] for i in rows], _to(device)), strict=True):
                found[i] = tensor
        return found

    def size(self) -> int:
        """Bytes that go to a device."""
        return sum(t.numel() * t.element_size() for t, device in zip(self.tensors, self.devices, strict=True) if device is not None)


def _to(device: int | None) -> _memory.Move:
    target = f"cuda:{device}"
    return lambda tensor: tensor.to(target, non_blocking=tensor.is_pinned())


def take(index: int) -> Tensor:
    """In a parcel's pickle: the tensor of that number."""
    return _open.tensors[index]  # type: ignore[no-any-return]


class Packer(ForkingPickler):
    """Pickles an output, and keeps its dense tensors aside."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []
        self.fragile = self.pins = False

    def reducer_override(self, value: Any) -> Any:
        """Called by the pickler for everything that is no plain number, text or container."""
        if not isinstance(value, Tensor):
            self.pins = self.pins or (not isinstance(value, _NO_PINS) and hasattr(type(value), "pin_memory"))
            return NotImplemented
        if isinstance(value, Shadow) and value._era not in (HELD, state.era):
            waken(value, "")  # inherited, and its data was never here
        self.fragile = self.fragile or fragile(value)
        return reduce(value, self._leaf)

    def _leaf(self, tensor: Tensor) -> Any:
        self.tensors.append(tensor)
        return take, (len(self.tensors) - 1,)


def any_fragile(data: Any) -> bool:
    """A quick look for fragile tensors in an output: into the containers that collate functions make, no further."""
    if isinstance(data, Tensor):
        return fragile(data)
    if isinstance(data, (list, tuple)):
        return any(map(any_fragile, data)) if len(data) <= _MANY else False
    return any(map(any_fragile, data.values())) if type(data) is dict else False


_MANY = 64


def pack(data: Any) -> Parcel | None:
    """A parcel of an output; None where PyTorch's own way is right: nothing in it is on CUDA, or fragile. Raises what pickling raises."""
    blob, packer = _packed(data)
    devices = [tensor.device.index if tensor.is_cuda else None for tensor in packer.tensors]
    if all(device is None for device in devices) and not packer.fragile:
        return None
    return Parcel(blob, on_cpu(packer.tensors), devices, pins=packer.pins)


def _packed(data: Any) -> tuple[bytes, Packer]:
    file = io.BytesIO()
    packer = Packer(file)
    packer.dump(data)
    return file.getvalue(), packer


def on_cpu(tensors: list[Tensor]) -> list[Tensor]:
    """Dense tensors as plain CPU tensors: a shadow's memory as it is, a real CUDA tensor's copied."""
    plain = [detached(tensor) for tensor in tensors]
    for tensor in plain:
        tag(tensor.untyped_storage(), None)  # torch keeps one Python object a storage, and somebody may have asked the shadow for it
    return _memory.moved(plain, Tensor.cpu) if any(tensor.is_cuda for tensor in plain) else plain


def by_value(tensor: Tensor) -> Any:
    """How to pickle a shadow by itself: the CPU data, moved to its device where it is unpickled."""
    made = reduce(tensor, lambda part: (land, (on_cpu([part])[0], part.device.index)) if part.is_cuda else NotImplemented)
    return made if made is not NotImplemented else (land, (on_cpu([tensor])[0], tensor.device.index))


def land(cpu: Tensor, index: int) -> Tensor:
    """In the process that unpickles it: data on its device, or on the shadow of it."""
    return cpu.to(f"cuda:{index}")
