"""The fork is `it = iter(loader)`; the touch is seen at next(it).

needs: torch
tier: P1
start: fork
maker: dataloader
error-mode: raise
reroute-mode: ok
advice: cpu-worker move-in-parent
sim: yes
"""

import torch
from torch.utils.data import DataLoader


def gather(items):
    return torch.tensor(
        items,
        dtype=torch.float32,
        device="cuda",
    )  # @touch


if __name__ == "__main__":
    model = torch.nn.Linear(1, 1).to("cuda")  # @init
    loader = DataLoader(range(4), batch_size=2, collate_fn=gather, num_workers=1, multiprocessing_context="fork", timeout=20)
    it = iter(loader)  # @fork
    assert next(it).tolist() == [0.0, 1.0]
    print("RESULT ok")
