"""What else in torch looks at a function or class by identity, and must be told what stands for what."""

from __future__ import annotations

from typing import Any

import torch

from cudaguard._shadow._patch import put, wrap


def _builtin(original: Any) -> Any:
    def find(function: Any) -> Any:
        found = original(function)
        return found if found is not None or not hasattr(function, "__wrapped__") else original(function.__wrapped__)

    return find


def _uncompiled(original: Any) -> Any:
    def compile_(model: Any = None, **kwargs: Any) -> Any:
        """A compiler would look through the shadow and generate code for the device it names."""
        kwargs["disable"] = True
        return original(model, **kwargs)

    return compile_


def install() -> None:
    # A CPU build has no cuDNN and warns when an RNN asks about a CUDA tensor.
    put(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    wrap(torch.jit._builtins, "_find_builtin", _builtin)
    wrap(torch, "compile", _uncompiled)
