"""A thread of the worker touches CUDA.

needs: torch
tier: P1
start: fork
maker: dataloader
error-mode: raise
reroute-mode: ok
advice: cpu-worker move-in-parent
sim: yes
"""

import threading

import torch
from torch.utils.data import DataLoader, Dataset


class Threaded(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        got = []
        thread = threading.Thread(target=lambda: got.append(torch.full((2,), float(i)).cuda()))  # @touch
        thread.start()
        thread.join()
        return got[0]


if __name__ == "__main__":
    warm = torch.zeros(1, device="cuda")  # @init
    loader = DataLoader(Threaded(), num_workers=1, multiprocessing_context="fork", timeout=20)
    for batch in loader:  # @fork
        assert batch.device.type == "cuda"
    print("RESULT ok")
