"""Two CUDA devices. Prints nothing where there is one."""

import torch
from _show import show


def main():
    a, b = torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")
    show("devices", lambda: [a, b, a.to("cuda:1"), b.cuda(0), b.cpu(), a.to(1)])
    show("mix", lambda: a + b)
    show("mix turned", lambda: b + a)
    show("scalar mix", lambda: a + torch.tensor(1.0, device="cuda:1"))
    show("cat", lambda: torch.cat([a, b]))
    show("index", lambda: a[torch.tensor([0], device="cuda:1")])
    show("copy_", lambda: a.clone().copy_(b * 5))
    show("like", lambda: [torch.zeros_like(b), b.new_ones(1), torch.tensor(b.detach().clone())])
    show("cuda means current", lambda: current())
    show("cuda() stays", lambda: stays())
    show("module", lambda: torch.nn.Linear(2, 1).cuda(1)(b).device)
    show("module mixed", lambda: torch.nn.Linear(2, 1).cuda(1)(a[None]))
    show("streams", lambda: [torch.cuda.Stream(device=1).device, torch.cuda.current_stream(1).device])
    show("generator", lambda: [torch.Generator(device="cuda:1").device, torch.rand(1, device="cuda:1").device])
    show("grad", lambda: grad())
    show("default", lambda: default())
    show("peer", lambda: isinstance(torch.cuda.can_device_access_peer(0, 1), bool))


def current():
    with torch.cuda.device(1):
        found = [torch.ones(1, device="cuda").device, torch.ones(1).cuda().device, torch.cuda.current_device()]
    return [*found, torch.cuda.current_device(), torch.ones(1).cuda().device]


def stays():
    with torch.cuda.device(1):
        return [torch.ones(1, device="cuda:0").cuda().device, torch.ones(1, device="cuda:0").to("cuda").device]


def grad():
    x = torch.ones(2, device="cuda:0", requires_grad=True)
    ((x * 2).to("cuda:1") * 3).sum().backward()
    return x.grad


def default():
    torch.set_default_device("cuda:1")
    try:
        return torch.zeros(1).device
    finally:
        torch.set_default_device(None)


if torch.cuda.device_count() > 1:
    main()
