"""What all hooks share: note where CUDA woke, judge a touch, explain an exception.

Every function here that a hook calls is safe: a fault inside is noted once and the program goes on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeVar

from .. import _driver, _journal, _places, _respond, _trace
from .._journal import DRIVER, Fork, Journal, Step
from .._places import Site
from .._respond import safe
from ..errors import CudaGuardError

R = TypeVar("R")


# The threads that are in a watched call: it will tell itself where CUDA woke, so nobody else should guess meanwhile, in any
# thread. Each thread writes its own entry alone: a shared count would drift, and a lock could be held at a fork.
_running: dict[int, int] = {}


def call(original: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Run a watched call of torch's, and keep the probes quiet until it is over."""
    thread = get_ident()
    depth = _running.get(thread, 0)
    _running[thread] = depth + 1
    try:
        return original(*args, **kwargs)
    finally:
        if depth:
            _running[thread] = depth
        else:
            _running.pop(thread, None)


def busy() -> bool:
    """Whether a watched call is running."""
    return bool(_running)


def forked() -> None:
    """Go on in a child: the calls that other threads were in did not come along."""
    _running.clear()


def journal() -> Journal:
    """This process's journal; a fork that no hook saw is noticed here, by pid."""
    book = _journal.current
    if book.strayed():
        book.adopt()
    return book


def site() -> Site:
    """Where this thread is, without the frames of a parent."""
    return _places.here(journal().cut())


def flagged() -> bool:
    """Whether torch itself calls this process a bad fork."""
    check = getattr(sys.modules.get("torch.cuda"), "_is_in_bad_fork", None)
    return bool(check()) if check is not None else False


def bad() -> Fork | None:
    """The fork that makes CUDA unusable in this process, if there is one.

    torch's flag counts too where no record does: the guard may have come on in the child, and some calls make later
    children bad without waking the driver.
    """
    book = journal()
    fork = book.bad_fork()
    if fork is None and flagged():
        last = book.forks[-1] if book.forks else Fork(os.getppid(), os.getpid(), None, unseen="unknown")
        fork = last._replace(tier=book.tier() or _journal.QUERIED)
        book.forks = [*book.forks[:-1], fork]
    return fork


def woken() -> bool:
    """Look whether somebody unseen woke the driver since the last look, and note between which lines."""
    book = journal()
    if busy() or book.steps or book.bad_fork():
        return bool(book.steps)
    if not _driver.up():
        book.down = _places.line_here()
        return False
    if book.late is None:
        _unseen(book, site())
    return True


def _unseen(book: Journal, here: Site) -> None:
    """Note that the driver is up here, and was not at the last look."""
    _trace.stepped(book.stepped(DRIVER, "", here, (book.down or here, here)))


@safe(None)
def last_look() -> None:
    """Look once more when the program ends: nothing of it is on the stack then, and a trace must not say that nobody woke CUDA."""
    book = journal()
    if not (book.steps or book.late or book.bad_fork()) and _driver.up():
        _unseen(book, Site("end of the program", 0, "<module>"))


@safe(None)
def touched(call: str = "") -> CudaGuardError | None:
    """Judge a touch of CUDA that is about to happen here. The error to raise, or None where torch should go on."""
    fork = bad()
    return None if fork is None else _judge(call, fork)


def _judge(call: str, fork: Fork) -> CudaGuardError | None:
    from .. import _calls, _verdict

    here = site()
    touch = _verdict.Touch(os.getpid(), call or _calls.name(here), here)
    return _respond.respond(_verdict.forked("fork-after-init", journal(), touch, _respond.facts(), fork))


def lost(call: str, fork: Fork) -> None:
    """Note that this process was told that there is no GPU, although its parent had woken one."""
    from .. import _verdict

    here = site()
    touch = _verdict.Touch(os.getpid(), f"torch.cuda.{call}", here)
    said = f"torch.cuda.{call}() finds no GPU in this process, although there is one: the driver cannot work in a forked child"
    _respond.respond(_verdict.forked("lost-gpu", journal(), touch, _respond.facts(), fork, said))


@safe(None)
def rose(tier: str, place: Site | None = None, call: str = "", cause: str = "") -> None:
    """Note that CUDA went up to a tier, here or at a place taken before the call. `cause` is what the hook is on."""
    from .. import _calls

    book = journal()
    if book.below(tier):
        here = place or site()
        said = call or _calls.name(here)
        # A library's function or another name for it, as the source has it, would not tell a reader that CUDA was asked.
        remark(book, book.stepped(tier, said if said.startswith("torch.") or not cause else cause, here, None, cause))


def remark(book: Journal, step: Step) -> None:
    """Notes on a step up: a worker that pays for a context, an import that woke CUDA."""
    from .. import _verdict

    _trace.stepped(step)
    touch = _verdict.Touch(step.pid, step.call, step.site)
    if step.tier == _journal.INITIALISED and book.worker:
        _respond.respond(_verdict.note("cuda-in-worker", book, touch, _respond.facts()))
    if len(book.steps) == 1 and step.imported:
        _respond.respond(_verdict.note("import-initialises", book, touch, _respond.facts()))


def said(error: BaseException) -> str:
    """The first line of what an exception says; its type's name if it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def module(name: str) -> Any:
    """A module that is loaded already, or None: hooks never import what the program did not."""
    return sys.modules.get(name)
