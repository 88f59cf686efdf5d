"""A Pool's task reads a CUDA tensor that it inherited.

needs: torch
tier: P1
start: fork
maker: pool
error-mode: note
reroute-mode: note
advice: pool-spawn
slug: inherited-tensor
sim: yes
"""

import multiprocessing as mp

import torch

table = torch.arange(4.0)


def pick(i):
    return table[i].item()  # @touch


if __name__ == "__main__":
    table = table.cuda()  # @init
    with mp.get_context("fork").Pool(1) as pool:  # @fork
        got = pool.map_async(pick, [1, 2]).get(timeout=20)
    assert got == [1.0, 2.0], got
    print("RESULT ok")
