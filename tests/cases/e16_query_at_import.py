"""Importing a helper asks whether there is a GPU, which is enough.

needs: torch
tier: P2
start: fork
maker: process
error-mode: raise
reroute-mode: raise
advice: nvml-check driver-import late-init
sim: yes
"""

import multiprocessing as mp
import os
import sys
import tempfile

os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
import torch

home = tempfile.TemporaryDirectory(prefix="cgcase_")
with open(os.path.join(home.name, "helper.py"), "w") as f:
    f.write("import torch\n\nDEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'\n")
sys.path.insert(0, home.name)
import helper


def job():
    assert torch.ones(2, device=helper.DEVICE).sum().item() == 2.0  # @touch


if __name__ == "__main__":
    p = mp.get_context("fork").Process(target=job)
    p.start()  # @fork
    p.join(20)
    assert p.exitcode == 0, p.exitcode
    print("RESULT ok")
