"""All that `install` changes in torch, in order."""

from __future__ import annotations

from cudaguard._shadow import (
    _autocast,
    _autograd,
    _compat,
    _crossing,
    _factories,
    _generators,
    _legacy,
    _moves,
    _nested,
    _ops,
    _runtime,
    _setup,
    _storage,
    _transforms,
)

# The tables first, then what makes tensors; torch.device last, since the others want the real class.
PARTS = (
    _setup, _crossing, _moves, _storage, _generators, _factories, _legacy, _nested, _autograd, _autocast, _transforms, _ops, _runtime, _compat
)  # fmt: skip


def install() -> None:
    for part in PARTS:
        part.install()
