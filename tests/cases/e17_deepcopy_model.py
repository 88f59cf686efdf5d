"""A child deep-copies a model that it inherited.

needs: torch
tier: P1
start: fork
maker: process
error-mode: note
reroute-mode: note
advice: spawn-context
slug: inherited-tensor
sim: yes
"""

import copy
import multiprocessing as mp

import torch

net = torch.nn.Linear(2, 1)


def job():
    twin = copy.deepcopy(net)  # @touch
    assert twin.weight.shape == (1, 2)


if __name__ == "__main__":
    net.cuda()  # @init
    p = mp.get_context("fork").Process(target=job, daemon=True)
    p.start()  # @fork
    p.join(25)
    assert p.exitcode == 0, p.exitcode
    print("RESULT ok")
