"""What a CUDA tensor says of itself."""

import copy
import pickle

import torch
from _show import show


def _grad_is_grad():
    w = torch.ones(2, device="cuda", requires_grad=True)
    (w * 2).sum().backward()
    return [w.grad is w.grad, w.grad]


def _views():
    base = torch.zeros(3, device="cuda")
    pair = copy.deepcopy({"base": base, "view": base[:2]})
    pair["base"][0] = 7
    return pair


x = torch.arange(6.0, device="cuda").view(2, 3)
show("device", lambda: [x.device, x.is_cuda, x.is_cpu, x.get_device(), x.device.type, x.device.index])
show("shape", lambda: [x.shape, x.dtype, x.stride(), x.layout, len(x), x.dim(), x.ndim, x.numel(), x.element_size(), x.nbytes])
show("flags", lambda: [x.is_contiguous(), x.requires_grad, x.is_leaf, x.is_sparse, x.is_pinned(), x.is_shared(), x.is_meta])
show("equal devices", lambda: [x.device == torch.device("cuda:0"), x.device == torch.device("cuda"), x.device == "cuda:0"])
show("isinstance", lambda: [isinstance(x, torch.Tensor), isinstance(x, torch.cuda.FloatTensor), isinstance(x, torch.cuda.LongTensor)])
show("class name", lambda: [type(x).__name__, torch.is_tensor(x), torch.typename(x)])
show("repr", lambda: repr(x[0]))
show("repr scalar", lambda: repr(x[0, 1]))
show("repr matrix", lambda: repr(x).replace("\n", "|"))
show("repr grad", lambda: repr(torch.ones(1, device="cuda", requires_grad=True)))
show("repr grad_fn", lambda: repr(torch.ones(1, device="cuda", requires_grad=True) * 2))
show("repr parameter", lambda: repr(torch.nn.Parameter(x)).replace("\n", "|"))
show("repr int", lambda: repr(x.int()[0]))
show("str", lambda: str(x[0]))
show("hash and dict", lambda: {x: 1}[x])
show("identity of grad", lambda: _grad_is_grad())
show("pickle", lambda: pickle.loads(pickle.dumps(x)))
show("deepcopy", lambda: copy.deepcopy(x))
show("copy", lambda: copy.copy(x))
show("deepcopy parameter", lambda: type(copy.deepcopy(torch.nn.Parameter(x))).__name__)
show("deepcopy views", lambda: _views())
show("storage", lambda: [x.untyped_storage().device, x.untyped_storage().nbytes(), x.untyped_storage().is_cuda])
show("iterate", lambda: list(x))
show("contains", lambda: [2.0 in x, 9.0 in x])
show("share_memory_", lambda: x.share_memory_() is x)
show("to sparse", lambda: x.to_sparse())
show("names", lambda: [x.T, x.mT, x.real])
