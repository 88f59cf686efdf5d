"""What torch.compile made, called in a rerouted worker: refused with tensors that would be on the GPU, run eagerly with others.

It may have been compiled in the parent, for a GPU that is dead here, and its wrapper is in the program's hands. But at every call a
wrapper asks a function of dynamo's for the frame evaluator to use, and finds that function by name: that is the door.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from .._shadow import is_shadow
from .._shadow._mixing import leaves
from .._shadow._patch import wrap

Refuse = Callable[[str], BaseException]
STANCE = "_callback_from_stance"  # from torch 2.6 on
SETTERS = ("set_eval_frame", "_maybe_set_eval_frame")
_watched: list[Any] = []


def watch(refuse: Refuse) -> None:
    """Watch from here on, if dynamo is loaded: without it there is nothing compiled. A second call does nothing."""
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    if frames is None or frames in _watched:
        return
    _watched.append(frames)
    for name in (STANCE,) if hasattr(frames, STANCE) else SETTERS:
        wrap(frames, name, lambda original: _asked(original, refuse))
    if hasattr(frames, STANCE):
        torch.compiler.set_stance("force_eager")  # else fullgraph=True complains that no frame was compiled


def _asked(original: Callable[[Any], Any], refuse: Refuse) -> Callable[[Any], Any]:
    def asked(callback: Any) -> Any:
        if not callable(callback):  # None and False: a wrapper that ends, or one that keeps the compiler out
            return original(callback)
        called = sys._getframe(1).f_locals
        if _on_gpu(called):
            raise refuse(f"torch.compile({_name(called.get('fn'))})")
        return original(None)

    return asked


def _on_gpu(called: dict[str, Any]) -> bool:
    """Whether a wrapper's call has anything to do on a GPU: in its arguments, or in the module it stands for."""
    owner = _owner(called.get("fn"))
    held = [*owner.parameters(), *owner.buffers()] if owner is not None else []
    return any(is_shadow(leaf) for leaf in leaves((called.get("args", ()), called.get("kwargs", {}), held)))


def _owner(function: Any) -> torch.nn.Module | None:
    """The module whose call was compiled; dynamo puts a function of its own around torch's modules."""
    owner = getattr(function, "__self__", None) or getattr(function, "__wrapped__", None)
    return owner if isinstance(owner, torch.nn.Module) else None


def _name(function: Any) -> str:
    owner = _owner(function)
    return type(owner).__name__ if owner is not None else getattr(function, "__qualname__", "")
