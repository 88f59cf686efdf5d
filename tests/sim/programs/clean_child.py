"""Children that may use CUDA: forked before anybody did, spawned, executed."""

import multiprocessing as mp
import os
import subprocess
import sys

from _fork import in_child
from _show import show


def work():
    import torch

    return (torch.ones(2).cuda() * 3).sum().item()


def put(queue):
    queue.put(work())


def spawned():
    context = mp.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=put, args=(queue,))
    child.start()
    answer = queue.get(timeout=60)
    child.join(60)
    return [answer, child.exitcode]


if __name__ == "__main__":
    import torch

    torch.manual_seed(0)
    torch.device("cuda:0")
    show("forked first", lambda: in_child(work))
    show("forked by the child", lambda: in_child(lambda: in_child(work)))
    show("child used it, then forked", lambda: in_child(lambda: [work(), in_child(work)]))
    show("parent then", work)
    show("forked after", lambda: in_child(work))
    show("spawned", spawned)
    code = "import torch; print(int(torch.ones(4).cuda().sum()))"
    show("executed", lambda: subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout.strip())
    show("spawned from a bad child", lambda: in_child(lambda: [spawned(), os.getpid() > 0]))
