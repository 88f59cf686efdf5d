"""torch.multiprocessing.start_processes with fork.

needs: torch
tier: P1
start: fork
maker: process
error-mode: raise
reroute-mode: raise
advice: spawn-context
sim: yes
"""

import torch
import torch.multiprocessing as mp


def run(rank):
    assert torch.full((1,), float(rank)).cuda().item() == rank  # @touch


if __name__ == "__main__":
    warm = torch.zeros(1, device="cuda")  # @init
    mp.start_processes(run, nprocs=1, start_method="fork")  # @fork
    print("RESULT ok")
