"""Autograd: gradients, hooks, Functions, checkpoints, higher orders."""

import torch
from _show import show
from torch.utils.checkpoint import checkpoint


def leaf():
    return torch.tensor([1.0, 2.0, 3.0], device="cuda", requires_grad=True)


def backward():
    x = leaf()
    (x * x).sum().backward()
    return [x.grad, x.grad.device]


def to_cpu_and_back():
    x = torch.ones(2, requires_grad=True)
    (x.cuda() * 3).sum().backward()
    y = leaf()
    (y.cpu() * 2).sum().backward()
    return [x.grad, y.grad]


def hooks():
    x, seen = leaf(), []
    x.register_hook(lambda grad: seen.append(str(grad.device)))
    y = x * 2
    y.register_hook(lambda grad: grad * 10)
    y.retain_grad()
    y.sum().backward()
    return [seen, x.grad, y.grad]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * factor + torch.zeros(3, device=x.device)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        assert [grad.device.type, x.device.type] == ["cuda", "cuda"], (grad.device, x.device)
        return 2 * ctx.factor * x * grad + torch.zeros_like(x), None


def function():
    x = leaf()
    y = Square.apply(Square.apply(x, 1.0), 2.0)
    y.sum().backward()
    return [y, x.grad]


def twice():
    x = leaf()
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return [first.detach(), second]


def checkpointed(reentrant):
    x = leaf()
    layer = torch.nn.Linear(3, 3).cuda()
    with torch.no_grad():
        layer.weight.fill_(0.5)
        layer.bias.fill_(0.1)
    y = checkpoint(lambda z: torch.tanh(layer(z)) * torch.ones(3, device=z.device), x, use_reentrant=reentrant)
    y.sum().backward()
    return [y, x.grad, layer.weight.grad.device]


def module_hooks():
    seen = []
    layer = torch.nn.Linear(3, 2).cuda()
    layer.register_full_backward_hook(lambda m, gi, go: seen.append([str(go[0].device)]))
    layer.register_forward_hook(lambda m, i, o: seen.append([str(i[0].device), str(o.device)]))
    layer(leaf()).sum().backward()
    return seen


def accumulated():
    x = leaf()
    for _ in range(3):
        (x * 2).sum().backward()
    before = x.grad
    x.grad = None
    return [before, x.grad]


def saved_hooks():
    x = leaf()
    with torch.autograd.graph.save_on_cpu():
        y = (x * x).exp()
    y.sum().backward()
    return x.grad


def _no_grad():
    with torch.no_grad():
        y = leaf() * 2
    return [y, y.requires_grad]


def _inference():
    with torch.inference_mode():
        y = leaf() * 2
        return [y, y.is_inference()]


def _with_gradient():
    x = leaf()
    (x * x).backward(torch.ones(3, device="cuda"))
    return x.grad


def _gradient_elsewhere():
    x = leaf()
    (x * x).backward(torch.ones(3))
    return x.grad


show("backward", backward)
show("across devices", to_cpu_and_back)
show("hooks", hooks)
show("function", function)
show("twice", twice)
show("checkpoint", lambda: checkpointed(False))
show("checkpoint reentrant", lambda: checkpointed(True))
show("module hooks", module_hooks)
show("accumulated", accumulated)
show("saved on cpu", saved_hooks)
show("no_grad", lambda: _no_grad())
show("inference", lambda: _inference())
show("backward with gradient", lambda: _with_gradient())
show("gradient elsewhere", lambda: _gradient_elsewhere())
show("gradient elsewhere, grad", lambda: torch.autograd.grad(leaf() * 2, leaf(), torch.ones(3), allow_unused=True))
show("gradient elsewhere, one number", lambda: leaf().sum().backward(torch.tensor(1.0)))
show("gradient on cuda of cpu", lambda: torch.ones(3, requires_grad=True).mul(2).backward(torch.ones(3, device="cuda")))
show("unused", lambda: torch.autograd.grad(leaf().sum(), leaf(), allow_unused=True))
show("vmap", lambda: torch.func.vmap(lambda v: v * 2 + v.sum())(torch.ones(2, 3, device="cuda")))
show("func grad", lambda: torch.func.grad(lambda v: (v * v).sum())(torch.ones(3, device="cuda")))
show("jacrev", lambda: torch.func.jacrev(lambda v: v * v)(torch.arange(2.0, device="cuda")))
show("jvp", lambda: torch.func.jvp(lambda v: v * v, (torch.ones(2, device="cuda"),), (torch.ones(2, device="cuda"),)))
show("functional jacobian", lambda: torch.autograd.functional.jacobian(lambda v: v * v, torch.arange(2.0, device="cuda")))
show("gradcheck", lambda: torch.autograd.gradcheck(torch.tanh, torch.ones(2, device="cuda", dtype=torch.float64, requires_grad=True)))
