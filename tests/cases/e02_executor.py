"""A ProcessPoolExecutor's call uses the GPU.

needs: torch
tier: P1
start: fork
maker: executor
error-mode: raise
reroute-mode: raise
advice: pool-spawn
sim: yes
"""

import multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor

import torch


def double(value):
    return (torch.tensor([value]).cuda() * 2).item()  # @touch


if __name__ == "__main__":
    warm = torch.zeros(1, device="cuda")  # @init
    with ProcessPoolExecutor(1, mp_context=mp.get_context("fork")) as pool:
        got = pool.submit(double, 2.0).result(timeout=20)  # @fork
    assert got == 4.0, got
    print("RESULT ok")
