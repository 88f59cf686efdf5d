"""The worker's side of the story: at which lines something went to the GPU, each noted once."""

from __future__ import annotations

import os
import sys
from types import FrameType

from .. import _advice, _calls, _places, _respond, _text, _verdict
from .._advice import Advice
from .._hooks import _notice
from .._journal import Fork
from .._places import GUARD, STANDARD, TORCH, USER, Site
from .._verdict import Finding, Touch
from ..errors import CudaForkError
from ._copies import Over
from ._delivery import Place


class Notes:
    """What one worker has noted. `now` are the lines of the batch in hand, `new` what the parent has not heard of yet."""

    def __init__(self) -> None:
        self.known: dict[Place, Finding] = {}
        self.now: dict[Place, None] = {}
        self.new: list[Finding] = []
        self.unplaced: Site | None = None
        self.used = False  # has anything gone to the GPU yet? Until then no output needs a look

    def noted(self, slug: str = "fork-after-init") -> None:
        """Something goes to the GPU here. On the path of every `.cuda()`: two dict look-ups once the line is known.

        `slug` is what it would be without rerouting: the fix is the same.
        """
        self.used = True
        place = line(sys._getframe(2))
        if place is None:  # torch alone: its collate_fn, whose data came from a line that is known, or its own dataset
            self.unplaced = self.unplaced or _notice.site()
            return
        self.now[place] = None
        if place not in self.known:
            self.add(_notice.site(), slug)

    def add(self, site: Site, slug: str, call: str = "") -> None:
        """Write a new line down."""
        place = site.file, site.line
        self.now[place] = None
        self.known[place] = finding = rerouted(Touch(os.getpid(), call or _calls.name(site), site), slug)
        self.new.append(finding)

    def placed(self) -> None:
        """A batch is on the GPU, and no line of the user's put it there: torch's line is the place."""
        if not self.known:
            self.add(self.unplaced or _notice.site(), "inherited-tensor")

    def taken(self) -> tuple[tuple[Place, ...], list[Finding]]:
        """The lines of this batch, and the new findings; both begin anew."""
        places, new = tuple(self.now), self.new
        self.now, self.new = {}, []
        return places, new


def line(frame: FrameType | None) -> Place | None:
    """The user's line, or the innermost outside torch where a library did it. The parent's frames do not count."""
    made = library = None
    while frame is not None:
        code = frame.f_code
        kind = _places.kind(code.co_filename)
        if kind == USER and not _places.generated(code.co_filename):
            return code.co_filename, frame.f_lineno
        if kind == USER:
            made = made or (code.co_filename, frame.f_lineno)
        if library is None and kind not in (TORCH, STANDARD, GUARD):
            library = code.co_filename, frame.f_lineno
        if code is _loop_code:
            break
        frame = frame.f_back
    return made or library


def heavy(site: Site, call: str, message: str) -> Finding:
    """The finding for a line whose GPU work takes a good part of the workers' time on the CPU."""
    finding = rerouted(Touch(os.getpid(), call, site), "fork-after-init")
    later = Advice("move-in-parent", f"Do it after the loader, on the GPU: move {_text.place(site)} into the loop, where the batch is there.")
    others = [advice for advice in finding.advice if advice.id != later.id]
    return finding._replace(message=message, advice=(later, *others)[: _advice.MOST])


def rerouted(touch: Touch, slug: str) -> Finding:
    """The finding for a line whose GPU data stays on the CPU."""
    book, facts = _notice.journal(), _respond.facts()
    fork = _notice.bad()
    if fork is not None:  # the fixes are those of the error that this would be without rerouting
        return _verdict.forked(slug, book, touch, facts, fork)._replace(slug="rerouted", message=SAID)
    return _verdict.note("rerouted", book, touch, facts)._replace(message=HEALTHY)


HEALTHY = "what this worker puts on the GPU comes to the main process by way of the CPU, not by CUDA IPC"
SAID = "what goes to the GPU here stays on the CPU in the worker, and is moved in the main process"


def refused(call: str) -> BaseException:
    """The error for work that only a GPU can do."""
    fork = _notice.bad() or Fork(os.getppid(), os.getpid(), None, unseen="unknown")
    site = _notice.site()
    finding = _verdict.forked("fork-after-init", _notice.journal(), Touch(os.getpid(), call, site, "it exists only on CUDA"), _respond.facts(), fork)
    return _respond.respond(finding) or CudaForkError(finding.message, finding.as_dict())


def beyond(over: Over, call: str) -> BaseException | None:
    """The error for a use of held data that was too much to copy; None where the user asked not to hear of it."""
    fork = _notice.bad() or Fork(os.getppid(), os.getpid(), None, unseen="unknown")
    touch = Touch(os.getpid(), call, _notice.site())
    finding = _verdict.forked("inherited-tensor", _notice.journal(), touch, _respond.facts(), fork)
    finding = finding._replace(message=f"{finding.message}: {over.said}", detail=over.path)
    return _respond.respond(finding)


def _code_of_loop() -> object:
    from .. import _worker

    return _worker._run.__code__


_loop_code = _code_of_loop()
