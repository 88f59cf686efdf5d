"""What the guard knows, as objects to look at."""

from __future__ import annotations

import sys
from typing import NamedTuple

from . import _driver, _journal, _respond
from ._journal import Step


class Origin(NamedTuple):
    """Who woke CUDA.

    Attributes:
        file, line: the user's line.
        call: the torch call on it, "" where it is not known.
        tier: `driver`, `queried` or `initialised`: how far the process has gone by now.
        between: two (file, line) pairs, the last place where CUDA was known to be down and the first where it was
            known to be up, where nobody could see the exact line; else None.
    """

    file: str
    line: int
    call: str
    tier: str
    between: tuple[tuple[str, int], tuple[str, int]] | None


class Report:
    """The findings of this process, and those its loader workers handed over."""

    def __init__(self, findings: list[tuple[dict[str, object], str]]) -> None:
        self.findings = [finding for finding, _ in findings]
        self._texts = [text for _, text in findings]

    def __str__(self) -> str:
        return "\n\n".join(self._texts) if self._texts else "cudaguard: no findings."

    def __repr__(self) -> str:
        return f"<cudaguard report: {len(self.findings)} findings>"

    def _repr_html_(self) -> str:
        from . import _notebook

        return _notebook.html(self.findings)


def origin() -> Origin | None:
    """Who woke CUDA here; see :func:`cudaguard.origin`."""
    steps = _journal.current.steps
    return _origin(steps[0], _journal.current.tier() or "") if steps else None


def _origin(step: Step, tier: str) -> Origin:
    between = ((step.between[0].file, step.between[0].line), (step.between[1].file, step.between[1].line)) if step.between else None
    return Origin(step.site.file, step.site.line, step.call, tier, between)


def fork_safe() -> bool:
    """Whether a child forked now may use CUDA; see :func:`cudaguard.fork_safe`."""
    cuda = sys.modules.get("torch.cuda")
    torch_up = cuda is not None and (getattr(cuda, "_initialized", False) or cuda._is_in_bad_fork())
    book = _journal.current
    return not (torch_up or book.tier() or book.bad_fork() or _driver.up())


def report() -> Report:
    """What has been found so far."""
    return Report(list(_respond.findings))
