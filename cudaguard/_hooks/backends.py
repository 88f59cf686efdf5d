"""torch's other back ends, where a fork spoils the same: torch marks the child, and refuses to initialise there.

The same verdict in their own words. They have no driver that could be asked, so torch's own flag decides alone. MPS has the flag and no lazy
initialisation; ROCm is torch.cuda under another name, and needs nothing here.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import _calls, _respond, _verdict
from .._journal import INITIALISED, Fork, Journal, Step
from .._respond import safe
from .._verdict import Finding, Touch
from ..errors import CudaGuardError
from . import _notice
from ._patch import Patches


class Backend(NamedTuple):
    """A back end: its module, the word for it, its lazy initialisation, and the flag that a fork sets."""

    module: str
    word: str
    init: str = "_lazy_init"
    flag: str = "_is_in_bad_fork"


BACKENDS = (Backend("torch.xpu", "XPU"), Backend("torch.mtia", "MTIA"), Backend("torch_npu.npu", "NPU"), Backend("torch_mlu.mlu", "MLU"))

# Who initialised a back end, by its word, and how many forks this process's line had seen by then. A fork copies it with the memory.
_origins: dict[str, tuple[Step, int]] = {}


def install(patches: Patches, module: str) -> None:
    """Watch the back end of a module that is loaded."""
    for backend in BACKENDS:
        if backend.module == module:
            patches.wrap(module, backend.init, functools.partial(_initialiser, backend, sys.modules[module]))


def _initialiser(backend: Backend, module: Any, original: Callable[[], None]) -> Callable[[], None]:
    flagged = getattr(module, backend.flag, lambda: False)

    @functools.wraps(original)
    def _lazy_init() -> None:
        error = _refusal(backend) if flagged() else None
        if error is not None:
            raise error
        original()
        _arrived(backend)

    return _lazy_init


@safe(None)
def _arrived(backend: Backend) -> None:
    known = _origins.get(backend.word)
    if known is None:
        site = _notice.site()
        step = Step(os.getpid(), INITIALISED, _calls.name(site), site, None, time.time())
        _origins[backend.word] = step, len(_notice.journal().forks)


@safe(None)
def _refusal(backend: Backend) -> CudaGuardError | None:
    site = _notice.site()
    touch = Touch(os.getpid(), _calls.name(site), site)
    book = _book(backend)
    finding = _verdict.forked("fork-after-init", book, touch, _respond.facts(), book.forks[0])
    return _respond.respond(_worded(finding, backend.word))


def _book(backend: Backend) -> Journal:
    """This process's journal as it looks from this back end: its own origin, and the forks after that."""
    book, own = _notice.journal(), Journal()
    step, count = _origins.get(backend.word, (None, 0))
    forks = book.forks[count:] or [Fork(os.getppid(), os.getpid(), None, unseen="unknown")]
    own.steps, own.forks = [step] if step else [], [fork._replace(tier=INITIALISED) for fork in forks]
    own.worker, own.start = book.worker, book.start
    return own


def _worded(finding: Finding, word: str) -> Finding:
    """The finding in this back end's words: the message, the story, and what is to be pasted."""
    advice = tuple(fix._replace(text=fix.text.replace('"cuda"', f'"{word.lower()}"').replace("CUDA", word)) for fix in finding.advice)
    return finding._replace(message=finding.message.replace("CUDA", word), facts=finding.facts._replace(word=word), advice=advice)
