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
