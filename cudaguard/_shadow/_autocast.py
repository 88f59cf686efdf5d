"""autocast("cuda"): the casts of CUDA's lists, made by hand, since CPU tensors know only the CPU's."""

from __future__ import annotations

from typing import Any

import torch

from cudaguard._shadow import _dispatch
from cudaguard._shadow._classes import Tensor
from cudaguard._shadow._patch import wrap
from cudaguard._shadow._state import state

# Computed in float32 under CUDA's autocast, by the name of the function.
FLOAT32 = set(
    """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm group_norm norm nuclear_norm
cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss_nd hinge_embedding_loss kl_div l1_loss smooth_l1_loss
huber_loss mse_loss margin_ranking_loss soft_margin_loss triplet_margin_loss multi_margin_loss cross_entropy cross_entropy_loss
binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp softmax log_softmax cumprod cumsum prod sum __pow__ __rpow__""".split()
)


UNSAFE = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\nsafe to autocast."
)


def _enabled() -> bool:
    return bool(torch.is_autocast_enabled("cuda"))


def _enabled_before_2_4() -> bool:
    return bool(torch.is_autocast_enabled())


def _dtype() -> torch.dtype:
    return torch.get_autocast_dtype("cuda") if hasattr(torch, "get_autocast_dtype") else torch.get_autocast_gpu_dtype()


def _casted(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = getattr(func, "__name__", "")
    if name == "binary_cross_entropy":
        raise RuntimeError(UNSAFE)
    if name in FLOAT32:
        with torch.autocast("cpu", enabled=False):
            return _dispatch.run(func, types, _widened(args), {name: _widen(value) for name, value in kwargs.items()})
    with torch.autocast("cpu", dtype=_dtype()):
        return _dispatch.run(func, types, args, kwargs)


def _widened(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_widen(arg) for arg in args)


def _widen(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        return value.to(torch.float32)
    return value


def _noticed(original: Any) -> Any:
    def entered(*args: Any, **kwargs: Any) -> Any:
        state.autocast = True
        return original(*args, **kwargs)

    return entered


def install() -> None:
    _dispatch.autocasting[:] = [_enabled if hasattr(torch, "get_autocast_dtype") else _enabled_before_2_4]
    _dispatch.casted[:] = [_casted]
    for name in ("set_autocast_enabled", "set_autocast_gpu_dtype", "set_autocast_dtype"):
        wrap(torch, name, _noticed)
