"""A Pool's task after an initializer that only seeds; the task touches.

needs: torch
tier: P1
start: fork
maker: pool
error-mode: raise
reroute-mode: raise
advice: pool-spawn
sim: yes
"""

import multiprocessing as mp

import torch


def seed():
    torch.manual_seed(0)


def task(n):
    return torch.cuda.current_device() + n  # @touch


if __name__ == "__main__":
    warm = torch.zeros(1, device="cuda")  # @init
    with mp.get_context("fork").Pool(1, initializer=seed) as pool:  # @fork
        got = pool.apply_async(task, (1,)).get(timeout=20)
    assert got == 1, got
    print("RESULT ok")
