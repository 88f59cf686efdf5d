"""What the shadow knows about this process: the policy that decides, the era of its tensors, the home of the era.

A tensor that "is" on ``cuda:i`` has a class of its own (see `_classes`), and that class belongs to an *era*. A fork of a process
whose driver was up, and a change of policy, begin a new era: tensors of an older one are inherited, and using one is the policy's
business. Comparing two integers per call is all that this costs.
"""

from __future__ import annotations

import os

from cudaguard._shadow._policy import Policy


class State:
    """One per process; read on every call, so plain attributes."""

    def __init__(self) -> None:
        self.policy = Policy(0)
        self.era = 0
        self.home = os.getpid()
        self.autocast = False  # has anybody ever entered autocast? Until then nobody asks
        self.installed = False


state = State()


def settle() -> None:
    """Notice a fork that no Python hook announced (uWSGI and others fork in C), or that one did announce."""
    pid = os.getpid()
    if pid != state.home:
        state.home = pid
        if state.policy.forked():
            state.era += 1


def switch(policy: Policy) -> None:
    """Let another policy decide from here on. What exists already counts as inherited."""
    state.policy = policy
    state.home = os.getpid()
    state.era += 1
