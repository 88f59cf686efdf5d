"""The questions a program may ask of the guard. What answers them is loaded when they are asked."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import TypeVar

    from ._findings import Origin, Report

    L = TypeVar("L")


def origin() -> Origin | None:
    """Who woke CUDA in this process, or in an ancestor it was forked from.

    None if nobody did, or if the guard came on too late to see it. See :class:`cudaguard._findings.Origin`.
    """
    from . import _findings

    return _findings.origin()


def fork_safe() -> bool:
    """Whether a child forked now may use CUDA: nobody has woken it here, and this process is no bad fork itself."""
    from . import _findings

    return _findings.fork_safe()


def report() -> Report:
    """What has been found so far in this process, and by its loader workers: `.findings`, text by `print`, HTML in a notebook."""
    from . import _findings

    return _findings.report()


def ignore(*slugs: str) -> AbstractContextManager[None]:
    """Silence findings of these slugs in this thread, in a `with`; a silenced touch does what PyTorch does.

    Raises ValueError for a slug that does not exist, naming the legal ones.
    """
    from . import _respond

    return _respond.Ignoring(*slugs)


def reroute(loader: L) -> L:
    """Reroute one loader whatever the mode: its workers stay on the CPU where they cannot use CUDA, its batches arrive on the GPU.

    Args:
        loader: a `torch.utils.data.DataLoader` or torchdata's `StatefulDataLoader`; iterators made before the call stay as they are.

    Returns the same loader. `CUDAGUARD=off` and :func:`disable` win: then nothing is rerouted. Raises TypeError for anything that is no loader.
    """
    from . import _reroute

    return _reroute.reroute(loader)
