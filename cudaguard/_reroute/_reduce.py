"""How a tensor of any layout is taken apart into dense tensors, and put together again where those have arrived.

`reduce` answers for a pickler's `reducer_override`. `leaf` is the caller's: what becomes of a dense tensor.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import torch

from .._shadow import Shadow
from .._shadow._classes import base_of

Leaf = Callable[[torch.Tensor], Any]
Tensor = torch.Tensor
Dispatchless = torch._C.DisableTorchFunctionSubclass
COMPRESSED = {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
BY_ROW = {torch.sparse_csr, torch.sparse_bsr}


def reduce(tensor: Tensor, leaf: Leaf) -> Any:
    """What a pickler should write for a tensor; NotImplemented where the tensor's own way is right.

    Raises PicklingError for a tensor with a history: only its own process can run it backwards.
    """
    if tensor.device.type not in ("cpu", "cuda"):
        return NotImplemented
    if wraps(tensor):
        return NotImplemented  # its parts are tensors, and the pickler will ask for each
    if tensor.requires_grad and not tensor.is_leaf:
        raise pickle.PicklingError("Cowardly refusing to serialize non-leaf tensor which requires_grad")
    return _as_sent(tensor, _layout(tensor, leaf))


def fragile(tensor: Tensor) -> bool:
    """Whether PyTorch's own way of sending loses something of a tensor, or refuses it.

    Gradients of strided nested ones; pinning of jagged ones with gaps or turned axes; conjugate and negative bits; quantisers.
    """
    if tensor.is_nested:
        return tensor.requires_grad and tensor.is_leaf if tensor.layout is torch.strided else not tensor.is_contiguous()
    return tensor.is_quantized or (tensor.layout is torch.strided and (tensor.is_conj() or tensor.is_neg()))


def wraps(tensor: Tensor) -> bool:
    """Whether a tensor is a Python wrapper around others, as jagged nested tensors are."""
    base: Any = base_of(type(tensor))
    return hasattr(base, "__tensor_flatten__") or base.__torch_dispatch__ is not Tensor.__torch_dispatch__


def _layout(tensor: Tensor, leaf: Leaf) -> Any:
    if tensor.is_nested:
        return _nested(tensor)
    if tensor.layout is torch.sparse_coo:
        return rebuild_sparse, (tensor._indices(), tensor._values(), tuple(tensor.shape), tensor.is_coalesced())
    if tensor.layout in COMPRESSED:
        return _compressed(tensor)
    if tensor.is_quantized:
        return _quantised(tensor)
    return _dense(tensor, leaf)


def _nested(tensor: Tensor) -> Any:
    plain = detached(tensor)
    parts = (plain._nested_tensor_size(), plain._nested_tensor_strides(), plain._nested_tensor_storage_offsets())
    return rebuild_nested, (placed(plain.values(), tensor), *parts)


def _compressed(tensor: Tensor) -> Any:
    by_row = tensor.layout in BY_ROW
    outer, inner = (tensor.crow_indices(), tensor.col_indices()) if by_row else (tensor.ccol_indices(), tensor.row_indices())
    return rebuild_compressed, (outer, inner, tensor.values(), tuple(tensor.shape), tensor.layout)


def _quantised(tensor: Tensor) -> Any:
    if tensor.qscheme() is torch.per_tensor_affine:
        return rebuild_quantised, (tensor.int_repr(), tensor.q_scale(), tensor.q_zero_point(), None)
    scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return rebuild_quantised, (tensor.int_repr(), scales, zeros, tensor.q_per_channel_axis())


def _dense(tensor: Tensor, leaf: Leaf) -> Any:
    conjugate, negative = tensor.is_conj(), tensor.is_neg()
    if not (conjugate or negative):
        return leaf(tensor)
    plain = detached(tensor)
    plain = torch._neg_view(plain) if negative else plain
    return rebuild_bits, (placed(plain.conj() if conjugate else plain, tensor), conjugate, negative)


def _as_sent(tensor: Tensor, made: Any) -> Any:
    """Add what is no data: the class, names, attributes, whether a gradient is wanted."""
    if made is NotImplemented:
        return made
    kind, names = base_of(type(tensor)), _names(tensor)
    kept = _attributes(tensor)
    if kind is Tensor and names is None and not kept and not tensor.requires_grad:
        return made
    return rebuild_tensor, (Rebuilt(*made), kind, tensor.requires_grad, names, kept)


def _names(tensor: Tensor) -> Any:
    names = None if tensor.is_nested else getattr(tensor, "names", None)  # torch 2.13 has no named tensors any more
    return names if names and any(name is not None for name in names) else None


def _attributes(tensor: Tensor) -> Any:
    with Dispatchless():
        return torch._utils._get_obj_state(tensor)  # type: ignore[no-untyped-call]


class Rebuilt:
    """Pickles as the object that `build(*args)` makes."""

    def __init__(self, build: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.build, self.args = build, args

    def __reduce__(self) -> Any:
        return self.build, self.args


def detached(tensor: Tensor) -> Tensor:
    """The same data as a plain tensor, where torch has it: on the CPU for a shadow, on the device for a real one."""
    with Dispatchless():
        plain: Any = tensor.detach()
        plain = plain.rename(None) if _names(plain) else plain
        return plain if type(plain) is Tensor else plain.as_subclass(Tensor)


def placed(plain: Tensor, like: Tensor) -> Tensor:
    """A plain tensor that stands where `like` does, if that is a shadow."""
    from .._shadow import tag

    return tag(plain, like._place) if isinstance(like, Shadow) else plain


def rebuild_nested(buffer: Tensor, sizes: Tensor, strides: Tensor, offsets: Tensor) -> Tensor:
    """A strided nested tensor over a buffer on any device; the rest stays on the CPU."""
    return torch._nested_view_from_buffer(buffer, sizes, strides, offsets)  # not the copy: it would be in ordinary memory where the buffer is pinned


def rebuild_sparse(indices: Tensor, values: Tensor, shape: tuple[int, ...], coalesced: bool) -> Tensor:
    """A COO tensor."""
    return torch.sparse_coo_tensor(indices, values, shape, device=values.device, check_invariants=False)._coalesced_(coalesced)


def rebuild_compressed(outer: Tensor, inner: Tensor, values: Tensor, shape: tuple[int, ...], layout: torch.layout) -> Tensor:
    """A CSR, CSC, BSR or BSC tensor."""
    return torch.sparse_compressed_tensor(outer, inner, values, shape, layout=layout, device=values.device, check_invariants=False)


def rebuild_quantised(integers: Tensor, scale: Any, zero_point: Any, axis: int | None) -> Tensor:
    """A quantised tensor, with its quantiser."""
    if axis is None:
        return torch._make_per_tensor_quantized_tensor(integers, scale, zero_point)
    return torch._make_per_channel_quantized_tensor(integers, scale, zero_point, axis)


def rebuild_bits(plain: Tensor, conjugate: bool, negative: bool) -> Tensor:
    """A view with the conjugate or negative bit set."""
    plain = torch._neg_view(plain) if negative else plain
    return plain.conj() if conjugate else plain


def rebuild_tensor(tensor: Any, kind: Any, requires_grad: bool, names: Any, kept: Any) -> Any:
    """The class, names and attributes that a tensor was sent with."""
    if issubclass(kind, torch.nn.Parameter):
        tensor = torch.nn.Parameter(tensor, requires_grad)
    elif kind is not Tensor:
        tensor = tensor.as_subclass(kind)
    if names is not None:
        tensor = tensor.rename(*names)
    if kept:
        torch._utils._set_obj_state(tensor, kept)  # type: ignore[no-untyped-call]
    return tensor.requires_grad_(requires_grad) if tensor.requires_grad != requires_grad else tensor
