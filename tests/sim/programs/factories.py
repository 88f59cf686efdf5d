"""Functions that make a tensor on a named device."""

import numpy as np
import torch
from _show import show

d = "cuda"
for name, make in {
    "zeros": lambda: torch.zeros(2, device=d),
    "ones": lambda: torch.ones(2, 2, device=d, dtype=torch.int64),
    "full": lambda: torch.full((2,), 7.0, device=d),
    "arange": lambda: torch.arange(4, device=d),
    "range": lambda: torch.linspace(0, 1, 3, device=d),
    "logspace": lambda: torch.logspace(0, 2, 3, device=d),
    "eye": lambda: torch.eye(2, device=d),
    "tensor": lambda: torch.tensor([1, 2], device=d),
    "tensor of tensor": lambda: torch.tensor(torch.ones(2), device=d),
    "tensor of cuda": lambda: torch.tensor(torch.ones(2, device=d)),
    "tensor of cuda to cpu": lambda: torch.tensor(torch.ones(2, device=d), device="cpu"),
    "tensor of list of cuda": lambda: torch.tensor([torch.tensor(1.0, device=d), 2.0]),
    "scalar": lambda: torch.scalar_tensor(3.0, device=d),
    "as_tensor": lambda: torch.as_tensor([1.0], device=d),
    "as_tensor array": lambda: torch.as_tensor(np.ones(2), device=d),
    "as_tensor cuda": lambda: torch.as_tensor(torch.ones(1, device=d)),
    "as_tensor cuda to cpu": lambda: torch.as_tensor(torch.ones(1, device=d), device="cpu"),
    "asarray": lambda: torch.asarray([1.0], device=d),
    "asarray array": lambda: torch.asarray(np.ones(2), device=d),
    "tril": lambda: torch.tril_indices(2, 2, device=d),
    "triu": lambda: torch.triu_indices(2, 2, device=d),
    "hann": lambda: torch.hann_window(4, device=d),
    "fftfreq": lambda: torch.fft.fftfreq(4, device=d),
    "empty": lambda: [torch.empty(0, device=d), torch.empty_strided((2,), (1,), device=d).device],
    "rand": lambda: [torch.rand(2, device=d).device, torch.randn(2, device=d).device, torch.randint(0, 2, (2,), device=d).device],
    "randperm": lambda: sorted(torch.randperm(3, device=d).tolist()),
    "zeros_like": lambda: torch.zeros_like(torch.ones(2), device=d),
    "ones_like": lambda: torch.ones_like(torch.ones(2, device=d)),
    "full_like to cpu": lambda: torch.full_like(torch.ones(2, device=d), 2.0, device="cpu"),
    "empty_like": lambda: torch.empty_like(torch.ones(2, device=d)).device,
    "rand_like": lambda: [torch.rand_like(torch.ones(2), device=d).device, torch.randn_like(torch.ones(2, device=d)).device],
    "new_zeros": lambda: torch.ones(1, device=d).new_zeros(2),
    "new_tensor": lambda: torch.ones(1, device=d).new_tensor([1, 2]),
    "new_full": lambda: torch.ones(1).new_full((2,), 3.0, device=d),
    "new_ones to cpu": lambda: torch.ones(1, device=d).new_ones(2, device="cpu"),
    "new_empty": lambda: torch.ones(1, device=d).new_empty(2).device,
    "new": lambda: torch.ones(1, device=d).new([1.0, 2.0]),
    "requires_grad": lambda: torch.zeros(1, device=d, requires_grad=True).requires_grad,
    "vander": lambda: torch.vander(torch.arange(3.0, device=d)),
    "meshgrid": lambda: torch.meshgrid(torch.arange(2, device=d), torch.arange(2, device=d), indexing="ij"),
    "complex": lambda: torch.complex(torch.ones(1, device=d), torch.ones(1, device=d)),
    "from out": lambda: torch.add(torch.ones(2, device=d), 1, out=torch.empty(2, device=d)),
    "pin of cuda": lambda: torch.empty(2, device=d, pin_memory=True),
    "shared memory": lambda: torch.arange(2, device=d) is not None and np.shares_memory(np.ones(1), np.ones(1)),
}.items():
    show(name, make)
a = np.ones(2)
t = torch.as_tensor(a, device=d)
t += 1
show("array untouched", lambda: a.tolist())
