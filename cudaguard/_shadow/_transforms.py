"""torch.func and checkpoints: C++ wrappers around our tensors that lose the class, and checks that look at it."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.checkpoint

from cudaguard._shadow._classes import Shadow, tag_all
from cudaguard._shadow._mixing import leaves
from cudaguard._shadow._patch import dress, wrap

TRANSFORMS = ["vmap", "grad", "grad_and_value", "jacrev", "jacfwd", "hessian"]  # take a function, return one
APPLIED = ["vjp", "jvp", "linearize"]  # take a function and its arguments at once


def _place_among(values: Any) -> int | None:
    return next((leaf._place for leaf in leaves(values) if isinstance(leaf, Shadow)), None)


def _placed(function: Any) -> Any:
    def placed(*args: Any, **kwargs: Any) -> Any:
        place = _place_among((args, kwargs))
        result = function(*args, **kwargs)
        return result if place is None else tag_all(result, place)

    return dress(placed, function) if hasattr(function, "__name__") else placed


def _transform(original: Any) -> Any:
    def transform(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        return _placed(made) if callable(made) else made

    return transform


def _meta(original: Any) -> Any:
    def extract(x: Any) -> Any:
        """Metadata by which a checkpoint compares two runs: autograd shows it some tensors before we can tell where they are."""
        found = original(x)
        return {**found, "device": None} if isinstance(found, dict) else found

    return extract


def install() -> None:
    for owner in (getattr(torch, "func", None), torch):
        for name in TRANSFORMS if owner is not torch else ("vmap",):
            if owner is not None:
                wrap(owner, name, _transform)
    for name in APPLIED:
        if hasattr(torch, "func"):
            wrap(torch.func, name, _placed)
    checks = getattr(torch.utils.checkpoint, "_allowed_determinism_checks_to_fns", {})
    for name, function in checks.items():
        checks[name] = _meta(function)
