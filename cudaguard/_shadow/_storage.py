"""Storages that say they are on ``cuda:i``: what torch.save, torch.load and the queues of multiprocessing look at."""

from __future__ import annotations

from typing import Any

import torch

from cudaguard._shadow._classes import Shadow, base_of, stand_ins, tag, waken
from cudaguard._shadow._devices import arrive
from cudaguard._shadow._patch import put, wrap
from cudaguard._shadow._state import settle, state

Untyped: Any = torch.UntypedStorage


class ShadowStorage(Shadow, torch.UntypedStorage):
    """A CPU storage that is on ``cuda:i`` for all who ask. `_received`: it came from another process."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._device

    @property
    def is_cuda(self) -> bool:
        return True

    def get_device(self) -> int:
        return self._place

    def is_shared(self) -> bool:
        return True

    def share_memory_(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def is_pinned(self, device: Any = None) -> bool:
        return False

    def _share_cuda_(self, *args: Any, **kwargs: Any) -> Any:
        from cudaguard._shadow import _crossing

        return _crossing.share(self)

    def __reduce__(self) -> Any:
        ready(self)
        return Untyped.__reduce__(self)


def ready(storage: Any) -> None:
    settle()
    if storage._era != state.era:
        waken(storage, "torch.UntypedStorage")


def _new(original: Any) -> Any:
    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        place = None if device is None else arrive(device)
        if place is None:
            return original(base_of(cls), *args, **kwargs)
        kwargs["device"] = "cpu"
        return tag(original(base_of(cls), *args, **kwargs), place)

    return new


def _shared(original: Any) -> Any:
    """Where a loader's worker collates. Shared from the start: what crosses processes is moved there anyway."""

    def _new_shared(cls: Any, size: int, *, device: Any = "cpu") -> Any:
        place = arrive(device)
        made = original.__func__(base_of(cls), size, device="cpu")
        return made if place is None else tag(made, place)

    return classmethod(_new_shared)


def _wrapped(original: Any) -> Any:
    typed: Any = torch.storage.TypedStorage

    def _new_wrapped_storage(self: Any, untyped_storage: Any) -> Any:
        if not isinstance(untyped_storage, ShadowStorage):
            return original(self, untyped_storage)
        # torch insists on the exact class here; the rest is what it does.
        if type(self) is typed:
            return typed(wrap_storage=untyped_storage, dtype=self.dtype, _internal=True)
        return type(self)(wrap_storage=untyped_storage)

    return _new_wrapped_storage


def install() -> None:
    put(Untyped, "__new__", staticmethod(_new(Untyped.__new__)))
    put(Untyped, "_new_shared", _shared(Untyped._new_shared))
    wrap(torch.storage.TypedStorage, "_new_wrapped_storage", _wrapped)


stand_ins[Untyped] = ShadowStorage
