"""A process started by a forked process touches CUDA: a grandchild.

needs: torch
tier: P1
start: fork
maker: process
error-mode: raise
reroute-mode: raise
advice: spawn-context
sim: yes
"""

import multiprocessing as mp

import torch

ctx = mp.get_context("fork")


def leaf():
    assert torch.ones(2).cuda().sum().item() == 2.0  # @touch


def middle():
    p = ctx.Process(target=leaf)
    p.start()
    p.join(20)
    raise SystemExit(p.exitcode)


if __name__ == "__main__":
    warm = torch.zeros(1, device="cuda")  # @init
    p = ctx.Process(target=middle)
    p.start()  # @fork
    p.join(25)
    assert p.exitcode == 0, p.exitcode
    print("RESULT ok")
