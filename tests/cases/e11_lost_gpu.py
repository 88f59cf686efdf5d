"""Something else woke the driver; in the worker is_available() is False and the CPU is taken quietly.

needs: torch
tier: P3
start: fork
maker: dataloader
error-mode: warn
reroute-mode: ok
advice: cpu-worker move-in-parent late-init spawn-context
slug: lost-gpu
sim: no
"""

import ctypes
import warnings

import torch
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore", message=".*CUDA initialization.*")


class Choosing(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        device = "cuda" if torch.cuda.is_available() else "cpu"  # @touch
        return torch.full((2,), float(i), device=device)


if __name__ == "__main__":
    ctypes.CDLL("libcuda.so.1").cuInit(0)  # @init
    loader = DataLoader(Choosing(), num_workers=1, multiprocessing_context="fork", timeout=20)
    for batch in loader:  # @fork
        assert batch.shape == (1, 2)
    print("RESULT ok")
