"""What a touch means in a rerouted worker: it is noted, and the CPU takes the GPU's place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from .._shadow import Policy
from . import _compiled
from ._parcel import by_value
from ._snapshot import Snapshot

_ITSELF = ("_higher_order_ops", "flex_attention")  # torch's files that call torch.compile on their own account
_INDUCTOR = ("backend", "mode", "options")  # what a compiler would be told: none is loaded in a worker


class Rerouted(Policy):
    """The parent's devices, always idle. Queries are answered from a snapshot, tensors that go to a device are noted."""

    def __init__(
        self,
        snapshot: Snapshot,
        noted: Callable[..., None],
        refuse: Callable[[str], BaseException],
        beyond: Callable[[str], BaseException | None] | None = None,
    ) -> None:
        super().__init__(len(snapshot.properties))
        self._snapshot, self._noted, self._refuse, self._beyond = snapshot, noted, refuse, beyond
        self.set_current(snapshot.current)

    def arrive(self, call: str = "") -> None:
        """Something is put on a device."""
        self.initialise()
        self._noted()

    def initialise(self) -> None:
        """A question, or a tensor on its way: torch initialises, on the shadow."""
        if not torch.cuda._initialized:
            torch.cuda._lazy_init()  # type: ignore[no-untyped-call]

    def held(self, call: str) -> None:
        """Data that the parent copied for this worker is used for the first time."""
        self._noted("inherited-tensor")

    def inherited(self, call: str) -> None:
        """Data that the parent did not copy is used: it was too much, or nobody knew that it was there."""
        refusal = self._beyond(call) if self._beyond is not None else None
        if refusal is not None:
            raise refusal
        super().inherited(call)

    @staticmethod
    def reduce(tensor: torch.Tensor) -> Any:
        """A tensor that the worker sends elsewhere than in an output goes as CPU data: there is no GPU memory to send a handle of."""
        return by_value(tensor)

    def kernel(self, call: str) -> bool:
        """An operator that has no CPU kernel is refused: moving data cannot stand in for it."""
        raise self._refuse("torch.ops." + call.removesuffix(".default").replace("::", "."))

    def lacking(self, what: str, instead: str) -> BaseException:
        """CUDA graphs and the like exist on a GPU alone."""
        return self._refuse(what)

    def compile(self, original: Callable[..., Any], model: Any, options: dict[str, Any]) -> Any:
        """What torch itself compiles, to run a `cond` or the like, stays eager; what the program compiles is watched."""
        caller = sys._getframe(2).f_code.co_filename
        if options.get("disable") or any(part in caller for part in _ITSELF):
            return super().compile(original, model, options)
        made = original(model, **{name: value for name, value in options.items() if name not in _INDUCTOR}, backend="eager")
        _compiled.watch(self._refuse)
        return made

    def properties(self, index: int) -> Any:
        return self._snapshot.properties[index]

    def memory(self, index: int) -> tuple[int, int]:
        return self._snapshot.memory[index]

    def arch_flags(self) -> str | None:
        return self._snapshot.arch
