"""Default device, default tensor type, current device."""

import torch
from _show import show


def made():
    return [
        torch.zeros(1).device, torch.tensor([1.0]).device, torch.rand(1).device, torch.arange(2).device, torch.eye(2).device,
        torch.as_tensor([1]).device, torch.nn.Linear(1, 1).weight.device, torch.zeros(1, device="cpu").device,
        torch.zeros_like(torch.ones(1, device="cpu")).device, torch.ones(1, device="cpu").new_zeros(1).device, torch.full((1,), 2.0).device,
        torch.randperm(3).device, torch.linspace(0, 1, 2).device, torch.empty(1).device, torch.tensor(3).device,
    ]  # fmt: skip


def within():
    with torch.device("cuda"):
        return made()


def decorated():
    @torch.device("cuda")
    def inner():
        return torch.ones(1).device

    return inner()


def default():
    torch.set_default_device("cuda")
    try:
        return [made(), torch.get_default_device(), torch.Generator(device="cuda").device]
    finally:
        torch.set_default_device(None)


def tensor_type():
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    try:
        return [torch.zeros(1).device, torch.tensor([1.0]).device, torch.rand(1).device, torch.nn.Linear(1, 1).weight.device]
    finally:
        torch.set_default_tensor_type("torch.FloatTensor")


def shuffled():
    torch.set_default_device("cuda")
    try:
        data = torch.utils.data.TensorDataset(torch.arange(4, device="cpu"))
        return [batch[0].device for batch in torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)]
    finally:
        torch.set_default_device(None)


def shuffled_generator():
    torch.set_default_device("cuda")
    try:
        data = torch.utils.data.TensorDataset(torch.arange(4, device="cpu"))
        loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True, generator=torch.Generator(device="cuda"))
        return [batch[0].device for batch in loader]
    finally:
        torch.set_default_device(None)


def nested_modes():
    with torch.device("cuda"), torch.device("cpu"):
        return torch.ones(1).device


show("without", made)
show("with device", within)
show("decorator", decorated)
show("set_default_device", default)
show("back", lambda: torch.zeros(1).device)
show("tensor type", tensor_type)
show("type back", lambda: torch.zeros(1).device)
show("nested", nested_modes)
show("loader", shuffled)
show("loader with generator", shuffled_generator)
show("device of int", lambda: [torch.device(0), torch.device("cuda"), torch.device("cuda", 0), isinstance(torch.device("cuda"), torch.device)])
show("device equality", lambda: [torch.device("cuda:0") == torch.device("cuda", 0), {torch.device("cuda:0"): 1}[torch.device(0)]])
show("device repr", lambda: [repr(torch.device(0)), type(torch.device(0)).__name__])
show("device error", lambda: torch.device("nonsense"))
