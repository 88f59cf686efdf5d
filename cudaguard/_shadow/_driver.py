"""The rules of the CUDA driver, for one process and its forked children, without a driver.

Three things that torch mixes up are kept apart here: the driver is *up* (``cuInit`` was called), torch's fork handler is *registered*
(later children are told that they are bad), and ``torch.cuda._initialized`` (torch's own). A forked child of a process whose driver
was up is *dead*: nothing can bring CUDA back in it. Facts: reference table of PyTorch's doors, measured on a GPU.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch

from cudaguard._shadow._errors import driver_error
from cudaguard._shadow._policy import Policy
from cudaguard._shadow._state import settle, state
from cudaguard._simulate import MASK, masked

_NO_COUNT = (
    "CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() "
    "that might have already set an error? Error 3: initialization error"
)


class Simulated(Policy):
    """N idle devices that follow the real rules. `mask` is the one that the program was started with."""

    def __init__(self, count: int, mask: str | None) -> None:
        super().__init__(count)
        self.up = False
        self.registered = False
        self.dead = False
        self.bad = False
        self._counted: int | None = None  # as in C++: asked once per process image, so a forked child inherits the answer
        self._mask = mask
        self._ready = -1  # the process in which lazy initialisation succeeded; from then on C++ does not ask torch again

    def initialise(self) -> None:
        if self._ready != state.home:
            cuda: Any = torch.cuda
            cuda._lazy_init()  # looked up now: whoever wraps it wants to see this
            self._ready = state.home

    def start(self) -> None:
        self.registered = True
        self._wake()

    def listed(self) -> int:
        """A program may hide the devices from itself, as long as the driver is down."""
        now = os.environ.get(MASK)
        return self.count if self._counted or now == self._mask else masked(now, self.count)

    def raw(self, call: str) -> None:
        self._wake()

    def ask(self, call: str) -> None:
        if self._ready != -1:  # here or in an ancestor: torch's note that it initialised survives a fork
            self.raw(call)

    def _wake(self) -> None:
        if self.dead:
            raise driver_error("initialization error")
        listed = self.listed()
        if not listed:
            raise RuntimeError("No CUDA GPUs are available")
        self.up = True
        self.count = self._counted = listed

    def visible(self) -> int:
        self.registered = True
        if self._counted is None:
            if not self.listed():
                self._counted = 0
            elif self.dead:
                warnings.warn(_NO_COUNT, stacklevel=3)
                self._counted = 0
            else:
                self._wake()
        return self._counted or 0

    def arch_flags(self) -> str | None:
        self.registered = True
        return "sm_90"

    def forked(self) -> bool:
        self.bad = self.bad or self.registered
        self.dead = self.dead or self.up
        self.up = False
        return self.dead

    def bad_fork(self) -> bool:
        return self.bad

    def is_up(self) -> bool:
        """What ``cuDeviceGetCount`` would tell: in a forked child it says "not initialised" whatever the parent did."""
        settle()
        return self.up
