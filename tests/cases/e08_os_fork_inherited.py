"""A plain fork reads a CUDA tensor; nobody catches what it raises.

needs: torch
tier: P1
start: os.fork
maker: os.fork
error-mode: note
reroute-mode: note
advice: late-init
slug: inherited-tensor
sim: yes
"""

import os
import signal

import torch

signal.alarm(28)
t = torch.ones(2, device="cuda")  # @init
pid = os.fork()  # @fork
if pid == 0:
    assert t.sum().item() == 2.0  # @touch
    os._exit(0)
status = os.waitpid(pid, 0)[1]
assert os.waitstatus_to_exitcode(status) == 0, status
print("RESULT ok")
