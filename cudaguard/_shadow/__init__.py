"""The shadow: tensors that live on the CPU and say that they live on ``cuda:i``.

Two things stand on it: the simulated device (`_driver.Simulated` decides, by the rules of a real driver) and the worker side of
rerouting (a policy of its own decides). `install` changes torch in this process; `switch` lets another policy decide, in a child
for example; both are all that its users need. Nothing here knows of cudaguard's guard.
"""

from __future__ import annotations

import os

from cudaguard._shadow._classes import Shadow, is_shadow, place_of, tag
from cudaguard._shadow._policy import Policy
from cudaguard._shadow._state import settle, state, switch

__all__ = ["Policy", "Shadow", "install", "is_shadow", "place_of", "settle", "state", "switch", "tag"]


def install(policy: Policy) -> None:
    """Make torch answer for the policy's devices in this process. A second call only changes the policy."""
    if state.installed:
        switch(policy)
        return
    from cudaguard._shadow import _parts

    state.begin(policy)
    _parts.install()
    os.register_at_fork(after_in_child=settle)
    state.installed = True
