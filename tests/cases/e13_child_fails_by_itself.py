"""Negative: a forked worker fails by itself; the guard has nothing to say.

needs: torch
tier: P1
start: fork
maker: dataloader
error-mode: silent
reroute-mode: silent
advice: none
sim: yes
"""

import torch
from torch.utils.data import DataLoader, Dataset


class Broken(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        raise ValueError("the file is not initialized")


if __name__ == "__main__":
    warm = torch.zeros(1, device="cuda")
    try:
        for batch in DataLoader(Broken(), num_workers=1, multiprocessing_context="fork", timeout=20):
            pass
    except ValueError as error:
        assert "the file is not initialized" in str(error)
        print("RESULT ok")
