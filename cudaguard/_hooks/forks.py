"""Hooks on os.fork. They cannot be unregistered, so they are registered once and do nothing while the guard is off."""

from __future__ import annotations

import os
import sys
import threading

from .. import _driver, _journal, _places, _respond, _trace
from .._journal import Fork
from .._respond import safe
from . import _notice, putting, shown

VISIBLE = "CUDA_VISIBLE_DEVICES"

_pending = threading.local()
_registered = False


def install() -> None:
    """Watch forks from now on."""
    global _registered
    if not _registered and hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
        _registered = True
    _begin()


@safe(None)
def _begin() -> None:
    _trace.started()


@safe(None)
def _before() -> None:
    """Ask the driver in the parent: in the child it answers that nothing is up, whatever happened."""
    book = _notice.journal()
    _notice.woken()
    _pending.fork = Fork(os.getpid(), 0, _tier(), _places.waiting(), book.cut(), _default_method(), os.environ.get(VISIBLE))
    _pending.ticket = _trace.depart("fork", _pending.fork.tier)


def _tier() -> str | None:
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and getattr(cuda, "_initialized", False):
        return _journal.INITIALISED
    return _journal.current.tier() or (_journal.DRIVER if _driver.up() else None)  # up, while another thread is still in the call


def _default_method() -> str | None:
    """The start method that the program chose for itself, if it chose one."""
    multiprocessing = sys.modules.get("multiprocessing")
    return multiprocessing.get_start_method(allow_none=True) if multiprocessing else None


@safe(None)
def _after_in_parent() -> None:
    fork: Fork | None = getattr(_pending, "fork", None)
    if fork is not None:
        _pending.fork = None
        _journal.current.children.append(fork)
    _trace.departed(getattr(_pending, "ticket", None))


@safe(None)
def _after_in_child() -> None:
    fork: Fork | None = getattr(_pending, "fork", None)
    if fork is not None:
        _pending.fork = None
        _journal.current.forked(fork._replace(pid=os.getpid()))
        _notice.forked()
        _respond.forked()
        _free_lock()
        _explain_what_is_shown()
        _trace.arrived(getattr(_pending, "ticket", None))


def _free_lock() -> None:
    """Replace torch's lock if another thread of the parent was initialising: here nobody would ever release it."""
    cuda = sys.modules.get("torch.cuda")
    lock = getattr(cuda, "_initialization_lock", None)
    if isinstance(lock, type(threading.Lock())) and lock.locked():
        setattr(cuda, "_initialization_lock", threading.Lock())  # noqa: B010  # a module of torch's, not ours


def _explain_what_is_shown() -> None:
    """In a child that cannot use CUDA, explain what it shows or sends. A grandchild has its parent's hooks."""
    if _journal.current.bad_fork() is not None:
        shown.install()
        putting.install()
