"""Streams and events of a device that is always idle: everything is done at once, so all queries say yes."""

from __future__ import annotations

import abc
import itertools
import sys
import threading
import time
from typing import Any

import torch

from cudaguard._shadow._devices import Device, arrive, cuda_index
from cudaguard._shadow._patch import put
from cudaguard._shadow._state import settle, state

KIND = 1  # c10::DeviceType::CUDA
_numbers = itertools.count(1)
_chosen = threading.local()  # current stream per thread and device


def current(index: int) -> tuple[int, int, int]:
    return getattr(_chosen, "streams", {}).get(index, 0), index, KIND


def default(index: int) -> tuple[int, int, int]:
    return 0, index, KIND


def select(stream_id: int, device_index: int, device_type: int = KIND) -> None:
    settle()
    state.policy.initialise()
    if not hasattr(_chosen, "streams"):
        _chosen.streams = {}
    _chosen.streams[device_index] = stream_id
    state.policy.set_current(device_index)


def current_object(index: int) -> Any:
    settle()
    state.policy.initialise()
    stream_id, device_index, device_type = current(index)
    return BaseStream(stream_id=stream_id, device_index=device_index, device_type=device_type)


class BaseStream:
    """``torch.Stream``."""

    def __new__(cls, device: Any = None, *, priority: int = 0, **ids: int) -> Any:
        settle()
        if "stream_id" not in ids:
            wanted = "cuda" if device is None else device
            if cuda_index(wanted) is None:
                raise RuntimeError(f"PyTorch is not linked with support for {Device(wanted).type} streams")
            state.policy.raw("torch.Stream")
        self = object.__new__(cls)
        self._fill(ids.get("stream_id"), ids.get("device_index", cuda_index("cuda" if device is None else device)), priority)
        return self

    def _fill(self, stream_id: int | None, index: int | None, priority: int) -> None:
        self.stream_id = next(_numbers) if stream_id is None else stream_id
        self.device_index = 0 if index is None else index
        self.device_type = KIND
        self.priority = priority
        self.cuda_stream = self.native_handle = self.stream_id

    @property
    def device(self) -> torch.device:
        return Device("cuda", self.device_index)

    def query(self) -> bool:
        settle()
        state.policy.raw("torch.cuda.Stream.query")
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        settle()
        state.policy.raw("torch.cuda.Stream.synchronize")

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: Any = None) -> Any:
        event = self._event() if event is None else event
        event.record(self)
        return event

    def _event(self) -> Any:
        return BaseEvent("cuda")

    def __enter__(self) -> Any:
        state.policy.raw("torch.cuda.Stream.__enter__")
        self._before = (current(self.device_index), state.policy.current())
        select(self.stream_id, self.device_index)
        return self

    def __exit__(self, *exc: object) -> None:
        (stream_id, device_index, _), before = self._before
        select(stream_id, device_index)
        state.policy.set_current(before)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BaseStream) and (self.stream_id, self.device_index) == (other.stream_id, other.device_index)

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return f"torch.Stream device_type=cuda, device_index={self.device_index}, stream_id={self.stream_id}"


class Stream(BaseStream):
    """``torch.cuda.Stream``."""

    def __new__(cls, device: Any = None, priority: int = 0, **ids: Any) -> Any:
        if "stream_id" not in ids and device is not None:
            arrive(device)  # torch enters the device first, which initialises; without one it asks the driver directly
        return super().__new__(cls, device, priority=priority, **ids)

    def _event(self) -> Any:
        return Event()

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    """``torch.cuda.ExternalStream``."""

    def __new__(cls, stream_ptr: int, device: Any = None, **ids: Any) -> Any:
        return super().__new__(cls, device, stream_id=stream_ptr, device_index=cuda_index("cuda" if device is None else device))


class BaseEvent:
    """``torch.Event``. Nothing happens until it is recorded."""

    def __init__(self, device: Any = None, *, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._timing, self._time, self._index = enable_timing, None, cuda_index("cuda" if device is None else device)

    _time: float | None

    @property
    def device(self) -> torch.device | None:
        return None if self._time is None else Device("cuda", self._index or 0)

    @property
    def event_id(self) -> int:
        return 0 if self._time is None else id(self)

    cuda_event = event_id

    def record(self, stream: Any = None) -> None:
        stream = torch.cuda.current_stream() if stream is None else stream
        settle()
        state.policy.raw("torch.cuda.Event.record")
        self._time, self._index = time.perf_counter(), stream.device_index

    def wait(self, stream: Any = None) -> None:
        if stream is None:
            torch.cuda.current_stream()
        self._ask("wait")

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """What is done is read from memory that the driver shares with the device: even a forked child gets an answer (seen on an H200)."""

    def _ask(self, call: str) -> None:
        """Only what was recorded exists: before that the driver is not asked."""
        settle()
        if self._time is not None:
            state.policy.raw(f"torch.cuda.Event.{call}")

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds between two recorded events."""
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._time is None or end_event._time is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        self._ask("elapsed_time")
        return float(end_event._time - self._time) * 1000.0

    def __repr__(self) -> str:
        return f"torch.Event device_type=cuda, device_index={self._index}, event_flag=0, event_id={self.event_id}"


class Event(BaseEvent):
    """``torch.cuda.Event``."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False) -> None:
        super().__init__("cuda", enable_timing=enable_timing)

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {id(self):#x}>" if self._time is not None else "<torch.cuda.Event uninitialized>"


def install() -> None:
    for made, name in ((BaseStream, "Stream"), (BaseEvent, "Event")):
        _rename(made, name, "torch")
        put(torch, name, made)
    for made, name in ((BaseStream, "_StreamBase"), (BaseEvent, "_EventBase")):
        base = getattr(sys.modules.get("torch._streambase"), name, None)
        if isinstance(base, abc.ABCMeta):  # Dynamo of torch 2.2 to 2.5 asks for it when it is imported
            base.register(made)
    kinds: tuple[type, ...] = (Stream, ExternalStream, Event)
    for kind in kinds:
        _rename(kind, kind.__name__, "torch.cuda")
        for owner in (torch.cuda, torch.cuda.streams):
            put(owner, kind.__name__, kind)


def _rename(made: type, name: str, module: str) -> None:
    made.__name__ = made.__qualname__ = name
    made.__module__ = module
