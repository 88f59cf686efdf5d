"""Sparse and nested tensors."""

import copy
import io
import warnings

import torch
from _show import show


def _sparse_grad():
    value = torch.tensor([1.0], device=d, requires_grad=True)
    torch.sparse_coo_tensor(torch.tensor([[0], [1]], device=d), value, (2, 2)).to_dense().sum().backward()
    return value.grad


def _embedding():
    table = torch.nn.Embedding(3, 2, sparse=True).cuda()
    table(torch.tensor([0, 2], device=d)).sum().backward()
    return [table.weight.grad.layout, table.weight.grad.device]


def _saved(nt):
    file = io.BytesIO()
    torch.save(nt, file)
    file.seek(0)
    here = torch.load(file, weights_only=False)
    file.seek(0)
    return [here, torch.load(file, map_location="cpu", weights_only=False)]


def _jagged_grad():
    leaves = [p.cuda().requires_grad_() for p in parts]
    layer = torch.nn.Linear(2, 2).cuda()
    out = layer(torch.nested.as_nested_tensor(leaves, layout=torch.jagged))
    out.values().sum().backward()
    return [leaves[0].grad.device, layer.weight.grad.device, layer.weight.grad.shape]


warnings.simplefilter("ignore")
dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
d = "cuda"
coo = torch.sparse_coo_tensor([[0, 1], [1, 0]], [2.0, 3.0], (2, 2), device=d)
csr = torch.sparse_csr_tensor([0, 1, 2], [1, 0], [2.0, 3.0], (2, 2), device=d)
show("coo", lambda: [coo, coo.is_sparse, coo.layout, coo.is_coalesced()])
show("coo parts", lambda: [coo.coalesce().indices(), coo.coalesce().values()])
show("coo moved", lambda: [dense.to_sparse().cuda(), dense.to_sparse().to(d), coo.cpu()])
show("coo of cuda parts", lambda: torch.sparse_coo_tensor(torch.tensor([[0], [1]], device=d), torch.tensor([1.0], device=d), (2, 2)))
show("coo work", lambda: [coo + coo, torch.sparse.mm(coo, dense.cuda()), coo @ dense.cuda(), (coo * 2).to_dense(), torch.sparse.sum(coo)])
show("coo mixed", lambda: torch.sparse.mm(coo, dense))
show("coo repr", lambda: repr(coo).replace("\n", "|"))
show("csr", lambda: [csr, csr.layout, csr.crow_indices(), csr.values()])
show("csr moved", lambda: [dense.to_sparse_csr().cuda(), csr.cpu(), csr.to_dense()])
show("csr work", lambda: csr @ dense.cuda())
show("csc bsr", lambda: [dense.to_sparse_csc().cuda(), dense.cuda().to_sparse_bsr((1, 1))])
show("sparse deepcopy", lambda: copy.deepcopy(coo))
show("sparse grad", lambda: _sparse_grad())
show("embedding sparse", lambda: _embedding())
parts = [torch.ones(2, 2), 2 * torch.ones(3, 2)]
strided = torch.nested.nested_tensor(parts, device=d)
jagged = torch.nested.nested_tensor(parts, layout=torch.jagged, device=d)
for name, nt in (("strided", strided), ("jagged", jagged)):
    show(name, lambda nt=nt: [nt, nt.is_nested, nt.layout, nt.is_cuda, nt.get_device(), nt.size(0), nt.dtype])
    show(f"{name} parts", lambda nt=nt: [part.device for part in nt.unbind()])
    show(f"{name} work", lambda nt=nt: [nt * 2, nt + nt, torch.relu(nt - 1.5), nt.sin()])
    show(f"{name} back", lambda nt=nt: nt.cpu())
    show(f"{name} to", lambda nt=nt: [nt.to("cpu"), nt.to(d), nt.to(torch.float64).dtype, nt.cuda().device])
    show(f"{name} padded", lambda nt=nt: torch.nested.to_padded_tensor(nt, 0.0))
    show(f"{name} linear", lambda nt=nt: torch.nn.Linear(2, 1, device=d)(nt).device)
    show(f"{name} deepcopy", lambda nt=nt: copy.deepcopy(nt))
    show(f"{name} detach clone", lambda nt=nt: [nt.detach(), nt.clone()])
    show(f"{name} saved", lambda nt=nt: _saved(nt))
    show(f"{name} plus cpu", lambda nt=nt: nt + nt.cpu())
    show(f"{name} pin", lambda nt=nt: nt.pin_memory())
    show(f"{name} pinned cpu", lambda nt=nt: [nt.cpu().pin_memory().is_pinned(), nt.cpu().is_pinned()])
    show(f"{name} like", lambda nt=nt: [torch.zeros_like(nt), torch.ones_like(nt).device])
show("jagged parts inside", lambda: [jagged.values(), jagged.offsets()])
show("jagged from cpu", lambda: torch.nested.nested_tensor(parts, layout=torch.jagged).cuda())
show("jagged same raggedness", lambda: jagged.cuda() + jagged)
show("jagged from parts", lambda: torch.nested.nested_tensor_from_jagged(torch.ones(5, 2, device=d), torch.tensor([0, 2, 5], device=d)))
show("jagged mixed parts", lambda: torch.nested.nested_tensor_from_jagged(torch.ones(5, 2, device=d), torch.tensor([0, 2, 5])))
show(
    "as_nested",
    lambda: [torch.nested.as_nested_tensor([p.cuda() for p in parts], layout=torch.jagged), torch.nested.as_nested_tensor([p.cuda() for p in parts])],
)
show("as_nested moved", lambda: torch.nested.as_nested_tensor(parts, device=d))
show("jagged grad", lambda: _jagged_grad())
show("jagged mean", lambda: jagged.mean(dim=1))
show("jagged softmax", lambda: torch.softmax(jagged, dim=-1))
