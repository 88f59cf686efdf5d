"""The worker_init_fn chooses a device.

needs: torch
tier: P1
start: fork
maker: dataloader
error-mode: raise
reroute-mode: ok
advice: cpu-worker move-in-parent
rerouted: no
sim: yes
"""

import torch
from torch.utils.data import DataLoader


def choose(worker_id):
    torch.cuda.set_device(worker_id % 1)  # @touch


if __name__ == "__main__":
    warm = torch.zeros(1, device="cuda")  # @init
    loader = DataLoader(range(4), num_workers=2, worker_init_fn=choose, multiprocessing_context="fork", timeout=20)
    seen = [b.item() for b in loader]  # @fork
    assert seen == [0, 1, 2, 3], seen
    print("RESULT ok")
