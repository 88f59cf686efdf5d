"""The dataset holds a generator that lives on the GPU.

needs: torch
tier: P1
start: fork
maker: dataloader
error-mode: raise
reroute-mode: ok
advice: cpu-worker move-in-parent copy-dataset-to-cpu
sim: yes
"""

import torch
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __init__(self):
        self.noise = torch.Generator(device="cuda")
        self.noise.manual_seed(0)
        self.scale = torch.ones(1, device="cuda")

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return torch.randn(2, generator=self.noise, device="cuda")  # @touch


if __name__ == "__main__":
    warm = torch.zeros(1, device="cuda")  # @init
    loader = DataLoader(Noise(), num_workers=1, multiprocessing_context="fork", timeout=20)
    for batch in loader:  # @fork
        assert batch.device.type == "cuda"
    print("RESULT ok")
