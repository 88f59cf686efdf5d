"""The verdict: journal in, finding out. Pure: no torch, no files, no processes."""

from __future__ import annotations

from typing import NamedTuple

from . import _advice, _places
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
    unpicklable: str = ""  # the part of what a child would need that does not pickle, so that spawn is no way out
    time: str = ""
    word: str = "CUDA"  # what the back end is called, where it is another
    default_device: bool = False  # whether tensors that name no device are made on the GPU
    script: bool = True  # whether the program is in a file: a spawned child could not import it otherwise


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


class Edge(NamedTuple):
    """How a process was made: the place, the maker and the start method, and what the program chose for itself."""

    site: Site | None = None
    maker: str | None = None
    start_method: str | None = None
    default_method: str | None = None


def forked(slug: str, journal: Journal, touch: Touch | None, facts: Facts, bad: Fork, said: str = "") -> Finding:
    """Judge a touch, or a death, in a process of which `bad` is the first fork made while CUDA was up."""
    steps = tuple(step for step in journal.steps if step.pid == bad.parent or step.pid not in _line(journal, bad))
    message = SENTENCE.get(slug) or said or (touch.said if touch else "")
    return _advised(_finding(slug, message, journal, touch, facts, _bad_edge(journal, bad), bad.tier, steps), bad.default_method)


def crossing(slug: str, journal: Journal, said: str, detail: str, touch: Touch | None, facts: Facts) -> Finding:
    """Judge what could not cross between processes, in a process whose CUDA may be in order. `said` is PyTorch's own sentence."""
    edge = _edge(journal)
    finding = _finding(slug, said, journal, touch, facts, edge, journal.tier(), tuple(journal.steps))
    return _advised(finding._replace(detail=detail), edge.default_method)


def note(slug: str, journal: Journal, touch: Touch | None, facts: Facts) -> Finding:
    """Something worth knowing that is no fault, in a process whose CUDA works."""
    return _finding(slug, NOTES.get(slug, slug), journal, touch, facts, _edge(journal), journal.tier(), tuple(journal.steps))


def _finding(
    slug: str, message: str, book: Journal, touch: Touch | None, facts: Facts, edge: Edge, tier: str | None, steps: tuple[Step, ...]
) -> Finding:
    origin = steps[0] if steps else None
    made = (edge.maker, edge.start_method)
    return Finding(slug, message, facts, book.pid, book.ppid, book.worker, *made, tier, origin, edge.site, touch, (), book.late, steps)


def _advised(finding: Finding, default_method: str | None) -> Finding:
    f, touch = finding, finding.touch
    place, call = (touch.site, touch.call) if touch else (None, "")
    spawn_works = not f.facts.notebook and f.facts.main_guard and not f.facts.unpicklable
    case = Case(
        *(f.slug, f.maker, f.start_method, f.tier, f.origin, f.fork, place, call, default_method, f.facts.notebook, spawn_works, f.message, f.detail),
        steps=f.steps,
        default_device=f.facts.default_device,
    )
    return finding._replace(advice=_advice.choose(case))


def _bad_edge(journal: Journal, bad: Fork) -> Edge:
    """The bad fork; for a child of the fork server the place that asked for it: nobody's line made the fork itself."""
    start = journal.start if isinstance(journal.start, Start) and journal.start.start_method == "forkserver" else None
    if start is not None:
        return Edge(start.site, start.maker, start.start_method, bad.default_method)
    return Edge(_fork_site(journal, bad), bad.maker, bad.start_method, bad.default_method)


def _edge(journal: Journal) -> Edge:
    made = journal.edge()
    if made is None:
        return Edge()
    return Edge(made.site, made.maker, made.start_method, made.default_method if isinstance(made, Fork) else None)


def _line(journal: Journal, bad: Fork) -> set[int]:
    """The processes that were forked from the bad fork on: what they did did not spoil themselves."""
    return {fork.pid for fork in journal.forks[journal.forks.index(bad) :]}


def _fork_site(journal: Journal, bad: Fork) -> Site | None:
    """Where the first bad fork was made, with the stacks of the later ones after it; None where no hook saw it."""
    if bad.unseen:
        return None
    later = [fork for fork in journal.forks[journal.forks.index(bad) + 1 :] if not fork.unseen]
    first = _made_by(bad)
    inner = (bad, *later) if first is not bad else later
    return first.site._replace(stack=sum((fork.site.stack for fork in inner), first.site.stack))


def _made_by(bad: Fork) -> Fork:
    """The fork itself; where its maker made it on no line of the user's, the last one before that the same maker made on one."""
    if not _places.library(bad.site):
        return bad
    before = (fork for fork in reversed(bad.siblings) if not fork.unseen and not _places.library(fork.site) and fork.maker == bad.maker)
    return next(before, bad)


def forbidden(journal: Journal, step: Step, facts: Facts, said: str, why: str) -> Finding:
    """A step up that was refused, or was seen too late to refuse it, where it is forbidden. `why` says by whom."""
    touch = Touch(step.pid, step.call, step.site)
    finding = _finding("forbidden-init", said, journal, touch, facts, Edge(), step.tier, (step,))
    return _advised(finding._replace(detail=why), None)


NOTES = {
    "cuda-in-worker": "a worker initialised CUDA: it costs a context, hundreds of MB of GPU memory",
    "import-initialises": "importing a module initialised CUDA",
}
