"""A Process subclass reads a CUDA tensor that it inherited.

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

import multiprocessing as mp

import torch

table = torch.arange(4.0, device="cuda")  # @init


class Reader(mp.get_context("fork").Process):
    def run(self):
        assert table.cpu().sum().item() == 6.0  # @touch


if __name__ == "__main__":
    p = Reader(daemon=True)
    p.start()  # @fork
    p.join(25)
    assert p.exitcode == 0, p.exitcode
    print("RESULT ok")
