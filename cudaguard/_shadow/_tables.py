"""The calls that are different, by name; a name that this torch does not have is left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

PASSIVE_PROPERTIES = """shape dtype layout requires_grad is_leaf grad_fn ndim itemsize nbytes is_sparse is_sparse_csr is_quantized is_meta is_nested
names output_nr retains_grad _version _backward_hooks _post_accumulate_grad_hooks is_mkldnn is_cpu is_xpu is_mps is_ipu is_xla is_hpu
is_vulkan is_maia is_mtia is_ort name volatile""".split()

PASSIVE_METHODS = """size stride dim numel nelement ndimension data_ptr storage_offset is_contiguous is_floating_point is_complex is_signed
is_conj is_neg is_inference element_size __len__ __hash__ requires_grad_ is_set_to is_same_size _is_view has_names is_distributed
_has_symbolic_sizes_strides dense_dim sparse_dim is_coalesced dim_order __dir__ is_shared _is_all_true_ storage_type""".split()

# Another look at the same memory: no kernel runs. (Indexing is not among them: it switches to the tensor's device first.)
VIEWS = """view view_as detach alias transpose swapaxes swapdims t permute movedim moveaxis unsqueeze squeeze expand expand_as narrow select unfold
as_strided diagonal unbind split split_with_sizes chunk unflatten reshape flatten adjoint view_as_real view_as_complex __iter__""".split()
VIEW_PROPERTIES = "T mT H mH real imag".split()
LAZY = ["__deepcopy__"]

# The most asked of them, which do not even go through dispatch.
READ_PROPERTIES = "shape dtype layout ndim requires_grad is_leaf grad_fn is_sparse is_nested is_quantized is_meta _version".split()
READ_METHODS = """size stride dim numel nelement data_ptr storage_offset is_contiguous is_floating_point is_complex element_size __len__""".split()

PASSIVE_FUNCTIONS = """_has_compatible_shallow_copy_type is_floating_point is_complex is_conj is_neg is_inference is_same_size numel""".split()

# May mix devices, or check by themselves.
FREE = "copy_ __getitem__ __setitem__ index_put_ index_put index set_data __set__ backward is_set_to is_same_size resize_as_".split()
# Take sizes, offsets or lengths on the CPU beside data on the device.
FREE += """_nested_view_from_jagged _nested_view_from_jagged_copy _nested_view_from_buffer _nested_view_from_buffer_copy _pad_packed_sequence
_pack_padded_sequence tensor_split""".split()
RECURRENT = "lstm gru rnn_tanh rnn_relu".split()  # the same, but the rest is checked
FREE += RECURRENT

# Return CPU tensors whatever the device of their arguments.
CPU_RESULT = ["_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets"]


def methods(names: Iterable[str], owner: Any = torch.Tensor) -> list[Any]:
    """The functions that torch-function dispatch names for these."""
    return [found for name in names if (found := getattr(owner, name, None)) is not None]


def getters(names: Iterable[str]) -> list[Any]:
    """The same for properties, which are announced by their ``__get__``."""
    return [found.__get__ for found in methods(names) if hasattr(found, "__get__")]


def packed(names: Iterable[str]) -> list[Any]:
    """Functions of ``torch`` and of ``torch._C._VariableFunctions``, where dispatch looks them up."""
    return methods(names, torch) + methods(names, torch._C._VariableFunctions)
