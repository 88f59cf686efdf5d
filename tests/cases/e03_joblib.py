"""joblib's multiprocessing back end forks.

needs: torch, joblib
tier: P1
start: fork
maker: joblib
error-mode: raise
reroute-mode: raise
advice: pool-spawn
sim: yes
"""

import torch
from joblib import Parallel, delayed


def double(value):
    return (torch.tensor([value]).cuda() * 2).item()  # @touch


if __name__ == "__main__":
    warm = torch.zeros(1, device="cuda")  # @init
    got = Parallel(n_jobs=2, backend="multiprocessing")(delayed(double)(v) for v in [1.0, 2.0])  # @fork
    assert got == [2.0, 4.0], got
    print("RESULT ok")
