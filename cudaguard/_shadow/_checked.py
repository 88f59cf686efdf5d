"""Kernels whose generated wrapper refuses tensors of two devices in a sentence of its own.

The wrapper takes the first tensor of the operator's schema as the measure and names the first that differs, CPU numbers without
dimensions included. Operators that iterate over their tensors (``+``, ``where``, losses made of them) have no wrapper and say
"found at least two devices" instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cudaguard._shadow._errors import wrapper_refuses

Chooser = Callable[[tuple[Any, ...], dict[str, Any]], str]

# Name in Python, kernel, and its tensors in the order in which they are checked: name in the sentence and position in Python.
# A line that starts with "=" is a variant, which `VARIANTS` chooses.
TABLE = """
mm              CUDA_mm                     self:0 mat2:1
bmm             CUDA_bmm                    self:0 mat2:1
baddbmm         CUDA_baddbmm                self:0 batch1:1 batch2:2
addmm           CUDA_addmm                  self:0 mat1:1 mat2:2
addmv           CUDA_addmv                  self:0 mat:1 vec:2
dot             CUDA__dot                   self:0 tensor:1
vdot            CUDA__vdot                  self:0 other:1
mv              CUDA_addmv_                 self:1 mat:0
=linear_bias    CUDA_addmm                  self:2 mat1:0 mat2:1
_sparse_mm      SparseCUDA__addmm           self:1 mat1:0
equal           CUDA__equal                 self:0 other:1
embedding       CUDA__index_select          self:1 index:0
index_select    CUDA__index_select          self:0 index:2
index_add       CUDA_index_add              self:0 index:2 source:3
index_add_      CUDA_index_add_             self:0 index:2 source:3
index_copy      CUDA_index_copy             self:0 index:2 source:3
index_copy_     CUDA_index_copy_            self:0 index:2 source:3
gather          CUDA_gather                 self:0 index:2
=scatter_value  CUDA_scatter_value          self:0 index:2
=scatter_src    CUDA_scatter_src            self:0 index:2 src:3
=scatter__value CUDA_scatter__value         self:0 index:2
=scatter__src   CUDA_scatter__src           self:0 index:2 src:3
scatter_add     CUDA_scatter_add            self:0 index:2 src:3
scatter_add_    CUDA_scatter_add_           self:0 index:2 src:3
take            CUDA__take                  self:0 index:1
masked_select   CUDA__masked_select         self:0 mask:1
clamp           CUDA_clamp_Tensor           self:0 min:1 max:2
clamp_          CUDA_clamp__Tensor          self:0 min:1 max:2
clamp_min       CUDA_clamp_min_Tensor       self:0 min:1
clamp_min_      CUDA_clamp_min__Tensor      self:0 min:1
clamp_max       CUDA_clamp_max_Tensor       self:0 max:1
clamp_max_      CUDA_clamp_max__Tensor      self:0 max:1
scatter_reduce  CUDA_scatter_reduce_two     self:0 index:2 src:3
scatter_reduce_ CUDA_scatter_reduce__two    self:0 index:2 src:3
batch_norm      CUDA__native_batch_norm     input:0 weight:3 bias:4 running_mean:1 running_var:2
prelu           CUDA___prelu_kernel         self:0 weight:1
cdist           CUDA___cdist_forward        x1:0 x2:1
searchsorted    CUDA_Tensor_searchsorted    sorted_sequence:0 self:1
bucketize       CUDA_Tensor_bucketize       self:0 boundaries:1
isin            CUDA_isin_Tensor_Tensor     elements:0 test_elements:1
linalg_solve    CUDA__linalg_solve_ex       A:0 B:1
=bag            CUDA___embedding_bag_forward_only weight:1 indices:0 offsets:2
=bag_with_grad  CUDA___embedding_bag        weight:1 indices:0 offsets:2
layer_norm      CUDA__native_layer_norm     input:0 weight:2 bias:3
group_norm      CUDA__native_group_norm     input:0 weight:2 bias:3
=classes        CUDA_nll_loss_forward       self:0 target:1 weight:2
=class_images   CUDA__nll_loss2d_forward    self:0 target:1 weight:2
conv1d          CUDA___slow_conv2d_forward  self:0 weight:1 bias:2
conv2d          CUDA___slow_conv2d_forward  self:0 weight:1 bias:2
"""

# Other names of the same.
SAME = {"clip": "clamp", "clip_": "clamp_"}
LISTS = frozenset("cat concat concatenate stack hstack vstack dstack column_stack row_stack".split())  # of tensors, to one kernel
Rows = dict[str, tuple[str, list[tuple[str, int]]]]


def _rows() -> Rows:
    found: Rows = {}
    for line in TABLE.strip().splitlines():
        name, kernel, *arguments = line.split()
        found[name] = kernel, [(argument, int(at)) for argument, _, at in (part.partition(":") for part in arguments)]
    found.update((other, found[name]) for other, name in SAME.items())
    return found


ROWS = _rows()


def _linear(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return "mm" if _argument(args, kwargs, 2, "bias") is None else "=linear_bias"


def _matmul(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    first, second = (tensor.dim() for tensor in args[:2])
    if second == 1:
        return "dot" if first == 1 else "mv"
    return "mm" if first < 3 or second < 3 else "bmm"


def _classes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if _argument(args, kwargs, 1, "target").is_floating_point():
        return ""  # chances of classes: plain arithmetic
    return "=class_images" if args[0].dim() > 2 else "=classes"


def _bag(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return "=bag_with_grad" if args[1].requires_grad and torch.is_grad_enabled() else "=bag"


def _scatter(name: str) -> Chooser:
    def choose(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        source = _argument(args, kwargs, 3, "src")
        return f"={name}_{'src' if isinstance(source, torch.Tensor) and source.dim() else 'value'}"

    return choose


VARIANTS: dict[str, Chooser] = {
    "linear": _linear, "matmul": _matmul, "__matmul__": _matmul, "scatter": _scatter("scatter"), "scatter_": _scatter("scatter_"),
    "cross_entropy": _classes, "nll_loss": _classes, "embedding_bag": _bag,
}  # fmt: skip


def _convolution(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """cuDNN's layer compares types, and so does MKLDNN's, which takes all but small CPU inputs."""
    source, weight, bias = args[0], args[1], _argument(args, kwargs, 2, "bias")
    other, name = (weight, "weight") if weight.device != source.device else (bias, "bias")
    if not source.is_cuda and source.size(0) == 1 and source.numel() <= 20480:
        return None
    tail = "" if source.is_cuda else " or input should be a MKLDNN tensor and weight is a dense tensor"
    return f"Input type ({source.type()}) and {name} type ({other.type()}) should be the same{tail}"


def _attention(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    query, key, value = (tensor.device for tensor in args[:3])
    if query == key == value:
        return None
    return (
        "Expected query, key, and value to have the same device type, but got "
        f"query.device: {query} key.device: {key} and value.device: {value} instead."
    )


def _masked_fill(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    target, mask = args[0].device, _argument(args, kwargs, 1, "mask").device
    return None if target == mask else f"expected self and mask to be on the same device, but got mask on {mask} and self on {target}"


def _take_along(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    source, index = args[0].device, _argument(args, kwargs, 1, "indices").device
    sentence = f"Expected tensor to have {source} Device, but got tensor with {index} Device"
    return None if source == index else f"{sentence} (while checking arguments for torch.take_along_dim():)"


# Functions that look for themselves, before any wrapper.
OWN: dict[str, Callable[[tuple[Any, ...], dict[str, Any]], str | None]] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _convolution),
    "scaled_dot_product_attention": _attention, "masked_fill": _masked_fill, "masked_fill_": _masked_fill, "take_along_dim": _take_along,
}  # fmt: skip


def refusal(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RuntimeError | None:
    """What the wrapper of the kernel behind a function would raise; None if it would pass these tensors, or if there is none."""
    said = OWN[name](args, kwargs) if name in OWN else None
    if said is not None:
        return RuntimeError(said)
    if name in LISTS:
        return _compare("CUDA_cat", [("tensors", tensor) for tensor in _argument(args, kwargs, 0, "tensors")])
    row = ROWS.get(VARIANTS[name](args, kwargs) if name in VARIANTS else name)
    if row is None:
        return None
    kernel, arguments = row
    return _compare(kernel, [(argument, _argument(args, kwargs, at, argument)) for argument, at in arguments])


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], at: int, name: str) -> Any:
    return args[at] if at < len(args) else kwargs.get(name)


def _compare(kernel: str, arguments: list[tuple[str, Any]]) -> RuntimeError | None:
    tensors = [(name, tensor.device) for name, tensor in arguments if isinstance(tensor, torch.Tensor)]
    if not tensors:
        return None
    common = tensors[0][1]
    odd = next((pair for pair in tensors if pair[1] != common), None)
    return None if odd is None else wrapper_refuses(odd[0], odd[1], common, kernel)
