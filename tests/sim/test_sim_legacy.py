"""`torch.Tensor(...)` follows the default tensor type, and what it makes of a tensor is where that tensor is."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import warnings; warnings.simplefilter("ignore")
import cudaguard, torch
class Named(torch.Tensor): pass
gpu = torch.ones(2, device="cuda")
alias = torch.Tensor(gpu)
alias[0] = 5
print(alias.device, gpu.tolist(), Named(gpu).device, type(gpu)([1.0]).device, torch.Tensor(2, 3).device)
torch.set_default_tensor_type("torch.cuda.DoubleTensor")
made = torch.Tensor([1, 2]), torch.Tensor(2, 3), Named([1.0]), torch.Tensor(2, device="cuda:1"), torch.Tensor(torch.ones(2, device="cpu"))
print([str(tensor.device) for tensor in made], made[0].dtype, type(made[2]).__name__)
torch.set_default_tensor_type("torch.FloatTensor")
print(torch.Tensor([1]).device)
import torch._dynamo
"""


def test_the_legacy_constructor() -> None:
    env = {**os.environ, "CUDAGUARD": "error", "CUDAGUARD_SIMULATE": "2", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        "cuda:0 [5.0, 1.0] cuda:0 cpu cpu",
        "['cuda:0', 'cuda:0', 'cuda:0', 'cuda:1', 'cpu'] torch.float64 Named",
        "cpu",
    ], done.stderr
    assert done.returncode == 0, done.stderr
