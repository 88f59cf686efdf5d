"""The verdict: journal in, finding out. Pure: no torch, no files, no processes."""

from __future__ import annotations

from typing import NamedTuple

from . import _advice
from ._advice import Advice, Case
from ._journal import Fork, Journal, Late, Start, Step, Worker
from ._places import Site

SEVERITY = {
    "fork-after-init": "error",
    "inherited-tensor": "error",
    "foreign-library": "error",
    "worker-died": "error",
    "lost-gpu": "warning",
    "unsendable-output": "error",
    "pin-cuda-output": "error",
    "ipc-broken": "error",
    "rerouted": "note",
    "cuda-ipc": "note",
    "cuda-in-worker": "note",
    "import-initialises": "note",
    "forbidden-init": "error",
    "internal": "note",
}

# The sentence that PyTorch gives for the same trouble: other tools match on it.
SENTENCE = {
    "fork-after-init": "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method",
    "inherited-tensor": "CUDA error: initialization error",
}


class Touch(NamedTuple):
    """Somebody used CUDA, or tried to. `said` is what PyTorch or another library said about it, where it did."""

    pid: int
    call: str
    site: Site
    said: str = ""


class Facts(NamedTuple):
    """What the process looked like, for a finding's header and for the choice of advice."""

    mode: str = "error"
    simulated: bool = False
    node: str = ""
    rank: int | None = None
    notebook: bool = False
    main_guard: bool = True  # whether `__main__` could be imported again, as spawn does
    time: str = ""


class Finding(NamedTuple):
    """One thing that went wrong, or is worth a note, with all that is known about it."""

    slug: str
    message: str
    facts: Facts
    pid: int
    ppid: int
    worker: Worker | None
    maker: str | None
    start_method: str | None
    tier: str | None
    origin: Step | None
    fork: Site | None
    touch: Touch | None
    advice: tuple[Advice, ...]
    late: Late | None = None  # the guard came on after CUDA was up
    steps: tuple[Step, ...] = ()  # every step up before the fork; the origin is the first
    detail: str = ""  # what exactly is to blame, where it is no line: a part of an output, an exit code

    @property
    def severity(self) -> str:
        """error, warning or note."""
        return SEVERITY[self.slug]

    def as_dict(self) -> dict[str, object]:
        """The finding as one JSON object of schema 1; unknown parts are None."""
        return {
            "schema": 1,
            "slug": self.slug,
            "severity": self.severity,
            "mode": self.facts.mode,
            "message": self.message,
            "simulated": self.facts.simulated,
            "pid": self.pid,
            "ppid": self.ppid,
            "node": self.facts.node,
            "rank": self.facts.rank,
            "worker": self.worker._asdict() if self.worker else None,
            "maker": self.maker,
            "start_method": self.start_method,
            "tier": self.tier,
            "origin": _origin(self.origin),
            "fork": self.fork.as_dict() if self.fork else None,
            "touch": {**self.touch.site.as_dict(), "call": self.touch.call or None} if self.touch else None,
            "advice": [advice._asdict() for advice in self.advice],
            "time": self.facts.time,
        }


def _origin(step: Step | None) -> dict[str, object] | None:
    if step is None:
        return None
    between = {"between": [site.as_dict() for site in step.between]} if step.between else {}
    return {**step.site.as_dict(), "call": step.call or None, **between}


def forked(slug: str, journal: Journal, touch: Touch | None, facts: Facts, bad: Fork, said: str = "") -> Finding:
    """Judge a touch, or a death, in a process of which `bad` is the first fork made while CUDA was up."""
    steps = tuple(step for step in journal.steps if step.pid == bad.parent or step.pid not in _line(journal, bad))
    start = journal.start if isinstance(journal.start, Start) and journal.start.start_method == "forkserver" else None
    site = _fork_site(journal, bad) if start is None else start.site
    maker, method = (start.maker, start.start_method) if start else (bad.maker, bad.start_method)
    origin = steps[0] if steps else None
    case = Case(
        slug,
        maker,
        method,
        bad.tier,
        origin,
        site,
        touch.site if touch else None,
        touch.call if touch else "",
        bad.default_method,
        facts.notebook,
        facts.main_guard,
    )
    message = SENTENCE.get(slug) or said or (touch.said if touch else "")
    return Finding(
        slug,
        message,
        facts,
        journal.pid,
        journal.ppid,
        journal.worker,
        maker,
        method,
        bad.tier,
        origin,
        site,
        touch,
        _advice.choose(case),
        journal.late,
        steps,
    )


def _line(journal: Journal, bad: Fork) -> set[int]:
    """The processes that were forked from the bad fork on: what they did did not spoil themselves."""
    return {fork.pid for fork in journal.forks[journal.forks.index(bad) :]}


def _fork_site(journal: Journal, bad: Fork) -> Site | None:
    """Where the first bad fork was made, with the stacks of the later ones after it; None where no hook saw it."""
    if bad.unseen:
        return None
    later = [fork for fork in journal.forks[journal.forks.index(bad) + 1 :] if not fork.unseen]
    return bad.site._replace(stack=sum((fork.site.stack for fork in later), bad.site.stack))


def note(slug: str, journal: Journal, touch: Touch | None, facts: Facts) -> Finding:
    """Something worth knowing that is no fault, in a process whose CUDA works."""
    edge = journal.edge()
    site, maker, method = (edge.site, edge.maker, edge.start_method) if edge else (None, None, None)
    origin = journal.steps[0] if journal.steps else None
    return Finding(
        slug, NOTES.get(slug, slug), facts, journal.pid, journal.ppid, journal.worker, maker, method, journal.tier(), origin, site, touch, ()
    )


def crossing(slug: str, journal: Journal, said: str, detail: str, touch: Touch | None, facts: Facts) -> Finding:
    """Judge what could not cross between processes, in a process whose CUDA may be in order. `said` is PyTorch's own sentence."""
    edge = journal.edge()
    site, maker, method = (edge.site, edge.maker, edge.start_method) if edge else (None, None, None)
    origin = journal.steps[0] if journal.steps else None
    default = edge.default_method if isinstance(edge, Fork) else None
    case = Case(
        slug, maker, method, journal.tier(), origin, site, touch.site if touch else None, "", default, facts.notebook, facts.main_guard, said, detail
    )
    return Finding(
        slug,
        said,
        facts,
        journal.pid,
        journal.ppid,
        journal.worker,
        maker,
        method,
        journal.tier(),
        origin,
        site,
        touch,
        _advice.choose(case),
        detail=detail,
    )


NOTES = {
    "cuda-in-worker": "a worker initialised CUDA: it costs a context, hundreds of MB of GPU memory",
    "import-initialises": "importing a module initialised CUDA",
}
