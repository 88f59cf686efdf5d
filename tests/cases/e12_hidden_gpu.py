"""Negative: the child hides the GPU from itself and takes the CPU on purpose.

needs: torch
tier: P1
start: fork
maker: process
error-mode: silent
reroute-mode: silent
advice: none
sim: yes
"""

import multiprocessing as mp
import os

import torch


def job():
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    assert torch.ones(2).sum().item() == 2.0


if __name__ == "__main__":
    warm = torch.zeros(1, device="cuda")
    p = mp.get_context("fork").Process(target=job)
    p.start()
    p.join(20)
    assert p.exitcode == 0, p.exitcode
    print("RESULT ok")
