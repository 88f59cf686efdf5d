"""Two devices in one call."""

import torch
import torch.nn.functional as F
from _show import show


def _set(target, index, value):
    target[index] = value
    return target


c, g = torch.ones(2), torch.ones(2, device="cuda")
m, gm = torch.eye(2), torch.eye(2, device="cuda")
show("add", lambda: g + c)
show("add turned", lambda: c + g)
show("in place", lambda: g.add_(c))
show("in place on cpu", lambda: c.add_(g))
show("cpu scalar", lambda: g + torch.tensor(2.0))
show("cuda scalar", lambda: c + torch.tensor(2.0, device="cuda"))
show("cpu scalar in place", lambda: g.clone().mul_(torch.tensor(3.0)))
show("where", lambda: torch.where(g > 0, g, torch.tensor(0.0)))
show("where mixed", lambda: torch.where(c > 0, g, g))
show("compare", lambda: g == c)
show("matmul", lambda: gm @ m)
show("mm", lambda: torch.mm(gm, m))
show("linear", lambda: F.linear(m, gm))
show("linear bias", lambda: F.linear(gm, gm, c))
show("cat", lambda: torch.cat([g, c]))
show("stack", lambda: torch.stack([g, c]))
show("embedding", lambda: F.embedding(torch.tensor([0]), gm))
show("index with cpu", lambda: g[torch.tensor([1])])
show("index with cuda", lambda: c[torch.tensor([1], device="cuda")])
show("mask with cpu", lambda: g[torch.tensor([True, False])])
show("set slice", lambda: _set(g.clone(), slice(0, 1), torch.tensor([9.0])))
show("set int", lambda: _set(g.clone(), 0, torch.tensor(9.0)))
show("set index", lambda: _set(g.clone(), torch.tensor([0]), torch.tensor(9.0)))
show("set index many", lambda: _set(g.clone(), torch.tensor([0, 1]), torch.tensor([8.0, 9.0])))
show("set cpu from cuda", lambda: _set(c.clone(), slice(None), g))
show("copy_", lambda: c.clone().copy_(g * 3))
show("lerp", lambda: torch.lerp(g, g, torch.tensor(0.5)))
show("clamp", lambda: g.clamp(min=torch.tensor(0.5)))
show("loss", lambda: F.mse_loss(g, c))
show("grad of another device", lambda: setattr(torch.zeros(2, device="cuda", requires_grad=True), "grad", c))
show("conv", lambda: F.conv1d(torch.ones(1, 1, 3), torch.ones(1, 1, 2, device="cuda")))
show("bmm", lambda: torch.bmm(m[None], gm[None]))
show("gather", lambda: torch.gather(g, 0, torch.tensor([0])))
show("index_select", lambda: torch.index_select(g, 0, torch.tensor([0])))
show("layer_norm", lambda: F.layer_norm(c, (2,), g, g))
show("dot", lambda: torch.dot(g, c))
show("equal", lambda: torch.equal(g, c))
show("allclose", lambda: torch.allclose(g, c))
show("einsum", lambda: torch.einsum("i,i->i", g, c))
show("addmm", lambda: torch.addmm(g, gm, m))
show("cross entropy", lambda: F.cross_entropy(gm, torch.tensor([0, 1])))
show("scatter", lambda: g.clone().scatter_(0, torch.tensor([0]), 5.0))
ones, twos, first = torch.ones(2, 2, 2), torch.ones(2, 2, 2, device="cuda"), torch.tensor([0])
more = {
    "linear weight": lambda: F.linear(gm, m),
    "linear weight and bias": lambda: F.linear(gm, m, g),
    "linear batched": lambda: F.linear(ones, gm, g),
    "linear batched no bias": lambda: F.linear(ones, gm),
    "mv": lambda: gm @ c,
    "vector product": lambda: g @ c,
    "vector first": lambda: c @ gm,
    "batched product": lambda: twos @ ones,
    "batched by matrix": lambda: twos @ m,
    "baddbmm": lambda: torch.baddbmm(twos, ones, twos),
    "addmv": lambda: torch.addmv(g, gm, c),
    "outer": lambda: torch.outer(g, c),
    "vdot": lambda: torch.vdot(c, g),
    "hstack": lambda: torch.hstack([c, g]),
    "vstack": lambda: torch.vstack([g, c]),
    "concatenate": lambda: torch.concatenate([g, c]),
    "cat of three": lambda: torch.cat([c, c, g]),
    "index_add": lambda: g.index_add(0, first, g[:1]),
    "index_add in place": lambda: g.clone().index_add_(0, torch.tensor([0], device="cuda"), c[:1]),
    "index_copy": lambda: g.index_copy(0, first, g[:1]),
    "index_fill": lambda: g.index_fill(0, first, 1.0),
    "scatter source": lambda: g.clone().scatter_(0, torch.tensor([0], device="cuda"), c[:1]),
    "scatter out of place": lambda: g.scatter(0, first, 5.0),
    "scatter_add": lambda: g.clone().scatter_add_(0, first, g[:1]),
    "scatter_reduce": lambda: g.scatter_reduce(0, first, g[:1], "sum"),
    "take": lambda: torch.take(g, first),
    "take_along_dim": lambda: torch.take_along_dim(g, first, 0),
    "masked_select": lambda: torch.masked_select(g, torch.tensor([True, False])),
    "masked_fill": lambda: g.masked_fill(torch.tensor([True, False]), 0.0),
    "clamp both": lambda: torch.clamp(g, c, g),
    "clamp in place": lambda: g.clone().clamp_(max=c),
    "clamp_min": lambda: g.clamp_min(torch.tensor(0.5)),
    "maximum": lambda: torch.maximum(g, torch.tensor(0.5)),
    "layer_norm weight": lambda: F.layer_norm(g, (2,), c, c),
    "group_norm": lambda: F.group_norm(gm, 1, c, c),
    "batch_norm": lambda: F.batch_norm(gm, None, None, c, c, training=True),
    "batch_norm input": lambda: F.batch_norm(m, g.clone(), g.clone(), g, g),
    "nll_loss": lambda: F.nll_loss(m, torch.tensor([0, 1], device="cuda")),
    "cross entropy weight": lambda: F.cross_entropy(gm, torch.tensor([0, 1], device="cuda"), weight=c),
    "cross entropy of chances": lambda: F.cross_entropy(gm, m),
    "cross entropy of images": lambda: F.cross_entropy(gm[None], torch.tensor([[0, 1]])),
    "binary cross entropy": lambda: F.binary_cross_entropy_with_logits(g, c),
    "embedding weight": lambda: F.embedding(torch.tensor([0], device="cuda"), m),
    "embedding_bag": lambda: F.embedding_bag(torch.tensor([[0]]), gm),
    "attention": lambda: F.scaled_dot_product_attention(twos, ones, ones),
    "conv weight": lambda: F.conv2d(torch.ones(1, 1, 3, 3, device="cuda"), torch.ones(1, 1, 2, 2)),
    "conv bias": lambda: F.conv2d(torch.ones(1, 1, 3, 3, device="cuda"), torch.ones(1, 1, 2, 2, device="cuda"), c[:1]),
    "conv of images": lambda: F.conv2d(torch.ones(8, 3, 32, 32), torch.ones(4, 3, 3, 3, device="cuda")),
    "conv weight of images": lambda: F.conv2d(torch.ones(8, 3, 32, 32, device="cuda"), torch.ones(4, 3, 3, 3)),
    "lstm": lambda: torch.nn.LSTM(2, 2).cuda()(ones),
    "prelu": lambda: F.prelu(g, c[:1]),
    "cdist": lambda: torch.cdist(gm, m),
    "searchsorted": lambda: torch.searchsorted(g, c),
    "isin": lambda: torch.isin(g, c),
    "foreach": lambda: torch._foreach_add([g], [c]),
    "adam": lambda: setattr(torch.nn.Parameter(g), "grad", torch.ones(3)),
    "solve": lambda: torch.linalg.solve(gm, m),
    "einsum of matrices": lambda: torch.einsum("ij,jk->ik", gm, m),
    "out": lambda: torch.add(g, g, out=c),
    "bucketize": lambda: torch.bucketize(g, c),
}
for name, use in more.items():
    show(name, use)
