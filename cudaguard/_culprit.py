"""Find the part of an object that cannot be pickled, and the path to it: `batch["meta"][3].lock`.

It must not move the user's data: tensors and arrays are swallowed, the sink only counts, and the search has limits.
torch's own pickler would put every tensor into shared memory.
"""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Iterator
from typing import Any

BYTES = 64 << 20  # of pickled data, tensors and arrays not counted
SECONDS = 1.0
DEPTH = 12
DATA = {"Tensor", "ndarray", "Generator", "StorageBase", "TypedStorage", "Stream", "Event", "_CudaStreamBase", "_CudaEventBase"}


class _TooMuch(Exception):
    """The search has cost enough."""


class _Counter(io.RawIOBase):
    def __init__(self, deadline: float) -> None:
        self.left, self.deadline = BYTES, deadline

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.left -= len(data)
        if self.left < 0 or time.monotonic() > self.deadline:
            raise _TooMuch
        return len(data)


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> str | None:
        return "data" if _is_data(obj) or _travels(obj) else None


def path(root: Any, name: str = "batch") -> str:
    """The path to the innermost part that does not pickle; the name alone where no part is to blame or the search ran out."""
    deadline = time.monotonic() + SECONDS
    try:
        return _descend(root, name, deadline, DEPTH)
    except _TooMuch:
        return name


def on_cuda(root: Any, name: str = "batch", depth: int = DEPTH) -> str:
    """The path to the first CUDA tensor in an object, with its type; "" if there is none."""
    if _is_data(root):
        return f"{name} ({type(root).__name__})" if getattr(root, "is_cuda", False) else ""
    return next((found for step, part in _parts(root) if depth for found in [on_cuda(part, name + step, depth - 1)] if found), "")


def unpicklable(root: Any, name: str) -> str:
    """The path to what keeps an object from being pickled, by Python's own pickler; "" if it pickles, or to find out costs too much."""
    try:
        return "" if _pickles(root, time.monotonic() + SECONDS) else path(root, name)
    except _TooMuch:
        return ""


def _descend(obj: Any, name: str, deadline: float, depth: int) -> str:
    for step, part in _parts(obj) if depth else ():
        if _data_trouble(part) or not _pickles(part, deadline):
            return _descend(part, name + step, deadline, depth - 1)
    return name


def _pickles(obj: Any, deadline: float) -> bool:
    try:
        _Pickler(_Counter(deadline), pickle.HIGHEST_PROTOCOL).dump(obj)
    except _TooMuch:
        raise
    except Exception:
        return False
    return True


def _is_data(obj: Any) -> bool:
    """Whether this is a tensor, an array or another holder of device data: those travel by torch's own ways.

    To pickle one would read the device, and in a bad child that can end the process: a CUDA generator's state does.
    """
    return any(base.__name__ in DATA and base.__module__.split(".")[0] in {"torch", "numpy"} for base in type(obj).__mro__)


def _travels(obj: Any) -> bool:
    """Whether this is a queue, a lock or a pipe of multiprocessing's: those pickle while a child is being started, and only then."""
    return type(obj).__module__.partition(".")[0] in {"multiprocessing", "multiprocess", "billiard"}


def _data_trouble(obj: Any) -> bool:
    """Whether a tensor itself is what torch refuses to send: it hangs on a graph."""
    return _is_data(obj) and bool(getattr(obj, "requires_grad", False)) and not getattr(obj, "is_leaf", True)


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a container or an object, each with the step that leads to it. No property is called."""
    if _is_data(obj):
        return
    if isinstance(obj, dict):
        yield from ((f"[{key!r}]", value) for key, value in obj.items())
    elif isinstance(obj, tuple) and hasattr(obj, "_fields"):
        yield from ((f".{field}", value) for field, value in zip(obj._fields, obj, strict=True))
    elif isinstance(obj, (list, tuple)):
        yield from ((f"[{index}]", value) for index, value in enumerate(obj))
    else:
        yield from ((f".{key}", value) for key, value in getattr(obj, "__dict__", {}).items())
