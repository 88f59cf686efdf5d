"""CUDA tensors between processes: torch's own reducers, with shared memory in place of a CUDA IPC handle.

torch reduces a CUDA tensor to ``storage._share_cuda_()`` and rebuilds it by ``_lazy_init()`` and ``_new_shared_cuda()``. Answering
those two is enough, and the rules (who is initialised, what may not be sent on) stay torch's.
"""

from __future__ import annotations

import multiprocessing.reduction
import os
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing.reductions

from cudaguard._shadow._classes import base_of, on_new_class, tag, waken
from cudaguard._shadow._devices import arrive
from cudaguard._shadow._errors import driver_error
from cudaguard._shadow._patch import put
from cudaguard._shadow._state import settle, state

reductions: Any = torch.multiprocessing.reductions
Untyped: Any = torch.UntypedStorage
_RESENT = "Attempted to send CUDA tensor received from another process; this is not currently supported. Consider cloning before sending."


class Handle:
    """What crosses: the shared memory of a storage. Hashable, since torch looks for what it already opened."""

    def __init__(self, fd: Any, size: int, key: tuple[int, int], owner: int) -> None:
        self.fd, self.size, self.key, self.owner = fd, size, key, owner

    def __reduce__(self) -> Any:
        return Handle, (multiprocessing.reduction.DupFd(self.fd), self.size, self.key, self.owner)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def share(storage: Any) -> tuple[Any, ...]:
    """``UntypedStorage._share_cuda_``: (device, handle, size, offset, and four parts of a reference counter)."""
    settle()
    if storage._era != state.era:
        waken(storage, "torch.UntypedStorage._share_cuda_")
    if getattr(storage, "_received", False):
        raise RuntimeError(_RESENT)
    if storage.nbytes() == 0:
        return storage._place, None, 0, 0, b"", 0, b"", False
    fd, size = storage._share_fd_cpu_()
    status = os.fstat(fd)
    handle = Handle(fd, size, (status.st_ino, status.st_dev), os.getpid())
    return storage._place, handle, size, 0, b"", 0, b"", False


def _opened(device: int, handle: Handle, size: int, *counters: Any) -> Any:
    """``UntypedStorage._new_shared_cuda``."""
    arrive(device)
    fd = _detach(handle)
    try:
        storage = tag(_kept(Untyped._new_shared_fd_cpu(fd, handle.size)), device)
    finally:
        os.close(fd)
    storage._received = True
    return storage


def _kept(storage: Any) -> Any:
    """The Python object that torch keeps for this memory. In 2.2 it is another than the one a storage from elsewhere first has."""
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).untyped_storage()


def _detach(handle: Handle) -> int:
    try:
        return int(handle.fd.detach())
    except OSError as gone:  # the sender has exited, and its memory with it
        raise driver_error("invalid resource handle") from gone


def _plainly(value: Any) -> Any:
    """Classes are pickled by name, and a shadow class goes by the name of the ordinary one: name that."""
    if isinstance(value, type):
        return base_of(value)
    if type(value) is tuple:
        return tuple(_plainly(part) for part in value)
    return value


def _reduce(tensor: Any) -> Any:
    settle()
    if tensor._era != state.era:
        waken(tensor, "torch.multiprocessing.reductions.reduce_tensor")
    if state.policy.reduce is not None:
        return state.policy.reduce(tensor)
    function, args = reductions.reduce_tensor(tensor)
    return function, _plainly(args)


def _refuse_storage(storage: Any) -> Any:
    raise RuntimeError("Cannot pickle CUDA storage; try pickling a CUDA tensor instead")


def _register(kind: type) -> None:
    ForkingPickler.register(kind, _reduce if issubclass(kind, torch.Tensor) else _refuse_storage)


def install() -> None:
    on_new_class.append(_register)
    put(torch.UntypedStorage, "_new_shared_cuda", staticmethod(_opened), create=True)
    put(torch.UntypedStorage, "_release_ipc_counter_cuda", staticmethod(lambda *args, **kwargs: None), create=True)
