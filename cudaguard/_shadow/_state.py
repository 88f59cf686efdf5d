"""What the shadow knows about this process: the policy that decides, the era of its tensors, the home of the era.

A tensor that "is" on ``cuda:i`` has a class of its own (see `_classes`), and that class belongs to an *era*. A fork of a process
whose driver was up, and a change of policy, begin a new era: tensors of an older one are inherited, and using one is the policy's
business. A look at one byte and the comparison of two integers per call is all that this costs.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

from cudaguard._shadow._policy import Policy

_WIPEONFORK = 18  # MADV_WIPEONFORK of Linux 4.14, which Python's mmap does not name


class _Asked:
    """Where the kernel wipes no page for us: `mark[0]` is 0 in a process that `settle` has not seen."""

    def __init__(self) -> None:
        self[0] = 1

    def __getitem__(self, at: int) -> int:
        return int(os.getpid() == self._pid)

    def __setitem__(self, at: int, value: int) -> None:
        self._pid = os.getpid()


def _mark() -> Any:
    """A byte that is 1 here and 0 in every forked child, whoever forked: reading it costs a tenth of getpid, which is a system call."""
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        page.madvise(_WIPEONFORK)
        page[0] = 1
        return page
    except (AttributeError, OSError, ValueError):  # Windows; macOS; an old kernel
        return _Asked()


class State:
    """One per process; read on every call, so plain attributes."""

    def __init__(self) -> None:
        self.policy = Policy(0)
        self.era = 0
        self.home = os.getpid()
        self.mark = _mark()
        self.autocast = False  # has anybody ever entered autocast? Until then nobody asks
        self.installed = False

    def begin(self, policy: Policy) -> None:
        """From here on this policy decides, in this process."""
        self.policy = policy
        self.home = os.getpid()
        self.mark[0] = 1


state = State()


def settle() -> None:
    """Notice a fork that no Python hook announced (uWSGI and others fork in C), or that one did announce."""
    if state.mark[0]:
        return
    state.mark[0] = 1
    state.home = os.getpid()
    if state.policy.forked():
        state.era += 1


def switch(policy: Policy) -> None:
    """Let another policy decide from here on. What exists already counts as inherited."""
    state.begin(policy)
    state.era += 1
