"""A forked child of a process that used CUDA: what still works, and how the rest fails."""

import copy
import pickle

import torch
from _fork import in_child
from _show import show


def _autocast():
    with torch.autocast("cuda"):
        return torch.mm(torch.ones(2, 2), torch.ones(2, 2))


def _default():
    torch.set_default_device("cuda")
    return torch.zeros(1)


t = torch.arange(6.0, device="cuda").view(2, 3)
c = torch.ones(3)
w = torch.nn.Parameter(torch.ones(3, device="cuda"))
net = torch.nn.Linear(3, 1).cuda()
s = t.to_sparse()
g = torch.Generator(device="cuda")
torch.cuda.device_count()
for name, use in {
    "shape": lambda: [t.shape, t.dtype, t.stride(), len(t), t.numel(), t.dim(), t.is_contiguous(), t.requires_grad],
    "device": lambda: [t.device, t.is_cuda, t.get_device(), t.layout, t.is_leaf],
    "data_ptr": lambda: t.data_ptr() != 0,
    "is_available": lambda: torch.cuda.is_available(),
    "device_count": lambda: torch.cuda.device_count() > 0,
    "is_initialized": lambda: torch.cuda.is_initialized(),
    "memory_allocated": lambda: torch.cuda.memory_allocated(),
    "empty_cache": lambda: torch.cuda.empty_cache(),
    "manual_seed_all": lambda: torch.cuda.manual_seed_all(0),
    "manual_seed": lambda: torch.manual_seed(0) is not None,
    "GradScaler": lambda: torch.amp.GradScaler("cuda").is_enabled(),
    "autocast": lambda: _autocast(),
    "accelerator": lambda: [torch.accelerator.is_available(), torch.accelerator.current_accelerator()],
    "index": lambda: t[0],
    "add": lambda: t + 1,
    "add in place": lambda: t.add_(1),
    "cpu": lambda: t.cpu(),
    "to": lambda: t.to("cpu"),
    "item": lambda: t[0, 0].item(),
    "sum": lambda: t.sum(),
    "repr": lambda: repr(t),
    "pickle": lambda: len(pickle.dumps(t)) > 0,
    "deepcopy": lambda: copy.deepcopy(t).shape,
    "clone": lambda: t.clone().shape,
    "tolist": lambda: t.tolist(),
    "view": lambda: t.view(-1).shape,
    "detach": lambda: t.detach().shape,
    "reshape": lambda: t.reshape(3, 2).shape,
    "transpose": lambda: t.T.shape,
    "slice": lambda: t[:, 1:].shape,
    "unbind": lambda: [row.shape for row in t],
    "data": lambda: t.data.shape,
    "data used": lambda: t.data + 1,
    "view used": lambda: t.view(-1) + 1,
    "storage": lambda: t.untyped_storage().nbytes(),
    "storage used": lambda: t.untyped_storage().clone().nbytes(),
    "deepcopy of a module": lambda: copy.deepcopy(net) is not None,
    "grad of a tensor": lambda: w.grad is None,
    "cuda scalar plus cpu": lambda: c + w.sum(),
    "is_pinned of a storage": lambda: c.untyped_storage().is_pinned(),
    "cat": lambda: torch.cat([c[None], t]),
    "copy_ to cpu": lambda: torch.empty(2, 3).copy_(t),
    "cpu plus cuda": lambda: c + t,
    "module": lambda: net(c),
    "parameter": lambda: w * 2,
    "sparse": lambda: s.to_dense(),
    "zeros": lambda: torch.zeros(1, device="cuda"),
    "cuda()": lambda: c.cuda(),
    "zeros_like": lambda: torch.zeros_like(t),
    "current_device": lambda: torch.cuda.current_device(),
    "get_device_name": lambda: torch.cuda.get_device_name(),
    "synchronize": lambda: torch.cuda.synchronize(),
    "accelerator synchronize": lambda: torch.accelerator.synchronize(),
    "mem_get_info": lambda: torch.cuda.mem_get_info(),
    "set_device": lambda: torch.cuda.set_device(0),
    "Stream": lambda: torch.cuda.Stream(),
    "Event record": lambda: torch.cuda.Event().record(),
    "Generator": lambda: torch.Generator(device="cuda"),
    "inherited generator": lambda: torch.rand(1, generator=g, device="cuda"),
    "pin_memory": lambda: c.pin_memory(),
    "is_pinned": lambda: c.is_pinned(),
    "nested": lambda: torch.nested.nested_tensor([c], device="cuda"),
    "ipc_collect": lambda: torch.cuda.ipc_collect(),
    "get_rng_state": lambda: torch.cuda.get_rng_state(),
    "default device": lambda: _default(),
    "cpu work": lambda: (c + 1).sum().item(),
}.items():
    print(f"{name}: {in_child(use)}", flush=True)
show("parent still works", lambda: t.sum())
show("grandchild", lambda: in_child(lambda: in_child(lambda: c.cuda())))
