"""What happened in this process and its ancestors: initialised, forked, started. It decides nothing.

A fork copies it with the rest of the memory; a spawned child gets the place it was started from (see
:class:`Start`). Records hold names, lines and numbers only.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import NamedTuple

from . import _makers, _places
from ._places import Frame, Site

# How far a process has gone with CUDA.
DRIVER, QUERIED, INITIALISED = "driver", "queried", "initialised"
TIERS = (DRIVER, QUERIED, INITIALISED)


class Step(NamedTuple):
    """CUDA went one tier up in a process. `between` brackets it where nobody could see the exact line."""

    pid: int
    tier: str
    call: str
    site: Site
    between: tuple[Site, Site] | None
    time: float
    cause: str = ""  # what a hook saw there, by its own name: `import x`, `torch.cuda.is_available`. The call is what a user would look for

    @property
    def imported(self) -> bool:
        """Whether an import on the user's line did it. C code that ran when it was loaded left no body on the stack."""
        return self.site.importing is not None or (self.cause.startswith("import ") and self.site.direct)


class Fork(NamedTuple):
    """A process was forked. `tier` is how far its parent had gone by then, None if CUDA was not up there."""

    parent: int
    pid: int
    tier: str | None
    waiting: tuple[Frame, ...] = ()  # the whole stack of the fork: in the child these frames are the parent's
    cut: tuple[Frame, ...] = ()  # the part of it that was an earlier parent's already
    default_method: str | None = None  # the program's own choice for multiprocessing, where it made one
    visible: str | None = None  # CUDA_VISIBLE_DEVICES then: a child may hide the GPU from itself
    unseen: str | None = None  # who forked, where no hook saw it: `c-fork`, or `unknown`
    siblings: tuple[Fork, ...] = ()  # the last forks that the parent made before: a pool's own thread makes later workers, on no line of the user's

    @property
    def site(self) -> Site:
        """The user's line that forked. Worked out when asked for: most forks are never asked about."""
        return _places.from_frames(self.waiting, self.cut)

    @property
    def maker(self) -> str:
        """Who forked."""
        return self.unseen or _makers.maker(self.site.stack)

    @property
    def start_method(self) -> str:
        """As multiprocessing calls it."""
        return "fork"


class Start(NamedTuple):
    """A process was started by spawn or forkserver: where, by whom."""

    parent: int
    site: Site
    maker: str
    start_method: str


class Worker(NamedTuple):
    """This process is a worker of a loader."""

    id: int
    num_workers: int


class Late(NamedTuple):
    """The guard came on when CUDA was up already, so nobody saw who woke it."""

    pid: int
    site: Site


class Journal:
    """The records of this process, oldest first, with those of the ancestors it was forked from."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.ppid = os.getppid()
        self.steps: list[Step] = []
        self.forks: list[Fork] = []
        self.start: Start | None = None
        self.worker: Worker | None = None
        self.late: Late | None = None
        self.down: Site | None = None  # the last place where CUDA was known to be down
        self.children: deque[Fork] = deque(maxlen=64)  # the last forks made here; a child knows its pid, its parent does not

    def stepped(self, tier: str, call: str, site: Site, between: tuple[Site, Site] | None = None, cause: str = "") -> Step:
        """Note that CUDA went up to a tier here."""
        step = Step(os.getpid(), tier, call, site, between, time.time(), cause)
        self.steps.append(step)
        return step

    def tier(self) -> str | None:
        """How far this process has gone, as far as anybody saw."""
        return max((step.tier for step in self.steps), key=TIERS.index, default=DRIVER if self.late else None)

    def below(self, tier: str) -> bool:
        """Whether this process has not been seen to go as far as a tier."""
        now = self.tier()
        return now is None or TIERS.index(now) < TIERS.index(tier)

    def forked(self, fork: Fork) -> None:
        """Go on as the child of a fork."""
        self.forks.append(fork._replace(siblings=tuple(self.children)))
        self.children.clear()
        self.pid, self.ppid = fork.pid, fork.parent

    def last_child(self) -> Fork | None:
        """The last fork that this process made."""
        return self.children[-1] if self.children else None

    def cut(self) -> tuple[Frame, ...]:
        """What the parent was doing when it forked this process: frames that are not this process's own."""
        return self.forks[-1].waiting if self.forks else ()

    def strayed(self) -> bool:
        """Whether this process was forked by C code, past Python's fork hooks."""
        return self.pid != os.getpid()

    def adopt(self) -> None:
        """Note a fork that no hook saw: only the pid tells of it."""
        self.forked(Fork(self.pid, os.getpid(), self.tier(), unseen="c-fork"))

    def bad_fork(self) -> Fork | None:
        """The first fork of this process's own line that was made while CUDA was up."""
        return next((fork for fork in self.forks if fork.tier is not None), None)

    def edge(self) -> Fork | Start | None:
        """How this process was made, if the guard saw it."""
        return self.start or (self.forks[-1] if self.forks else None)


current = Journal()


def restart() -> Journal:
    """Begin anew: the guard was switched on again."""
    global current
    current = Journal()
    return current
