"""What the events of a trace tell about a program: steps up, children, touches, each with its process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .._journal import TIERS
from .._trace import METHODS
from . import lines
from .lines import Line
from .watched import Event, Outcome

Site = dict[str, Any]  # as in a report


class Step(NamedTuple):
    """CUDA went one tier up. `seconds` count from the program's start; `at` is the line that did it, also where it is a library's."""

    seconds: float
    pid: int
    role: str
    tier: str
    call: str
    site: Site
    between: list[Site]
    at: Line | None


class Child(NamedTuple):
    """A process was made. `pid` is None where it did not live to tell."""

    seconds: float
    parent: int
    pid: int | None
    role: str
    method: str
    maker: str
    tier: str | None
    safe: bool
    site: Site


class Touch(NamedTuple):
    """Something was found."""

    seconds: float
    pid: int
    role: str
    slug: str
    severity: str
    message: str
    call: str
    site: Site | None


class History(NamedTuple):
    """All of a program's processes, each list in the order of time."""

    steps: list[Step]
    children: list[Child]
    touches: list[Touch]

    @property
    def first(self) -> Step | None:
        """Who asked for CUDA first, in any process."""
        return self.steps[0] if self.steps else None

    @property
    def tier(self) -> str | None:
        """How far any process went."""
        return max((step.tier for step in self.steps), key=TIERS.index, default=None)


def read(outcome: Outcome) -> History:
    """Read a program's events."""
    events = sorted(outcome.events, key=lambda event: int(event["ts"]))
    roles = {event["pid"]: event["args"]["role"] for event in events if event["ph"] == "M"}
    arrived = {event["args"]["child"]: event["pid"] for event in events if event["ph"] == "X" and event["name"] in METHODS.values()}
    made = [_child(event, roles, arrived, outcome.began) for event in events if event["ph"] == "X" and event["name"] in METHODS]
    asked = {event["pid"] for event in events if event["name"] == "deep" and event["args"]["lines"] and event["args"]["seconds"] is None}
    return History(
        [_step(_narrowed(event) if event["pid"] in asked else event, roles, outcome.began) for event in _of(events, "cuda")],
        _once(made),
        [_touch(event, roles, outcome.began) for event in _of(events, "finding")],
    )


def _once(made: list[Child]) -> list[Child]:
    """A child of the fork server is made twice: it is asked for in one process, and forked in another, which may spoil it."""
    asked = {child.pid for child in made if child.method == "forkserver" and child.pid is not None}
    spoilt = {child.pid for child in made if child.method == "fork" and not child.safe}
    seen = [child for child in made if child.method != "fork" or child.pid not in asked]
    return [child._replace(safe=child.safe and child.pid not in spoilt) for child in seen]


def _of(events: list[Event], category: str) -> Iterator[Event]:
    return (event for event in events if event["cat"] == category)


def _seconds(event: Event, began: int) -> float:
    return float(round((event["ts"] - began) / 1e6, 3))


def _site(args: dict[str, Any]) -> Site | None:
    names = ("file", "line", "function", "code", "cell", "stack")
    return {name: args[name] for name in names} if "file" in args else None


def _narrowed(event: Event) -> Event:
    """A step that a hook found only when CUDA was up, where the driver was asked at each line of the bodies: what such a line called has done it."""
    args = event["args"]
    bodies = [i for i, frame in enumerate(args["stack"]) if frame["function"] == "<module>" and lines.matters(frame["file"])]
    if "between" not in args or not bodies:
        return event
    kept = {name: value for name, value in args.items() if name != "between"}
    return {**event, "args": {**kept, "stack": args["stack"][: bodies[-1] + 1]}}


def _step(event: Event, roles: dict[int, str], began: int) -> Step:
    args = event["args"]
    site, between = _site(args) or {}, args.get("between", [])
    at = None if between else lines.innermost(site.get("stack") or [], args["call"])
    call = args["call"] or ("" if between else lines.called(at))  # on the user's line there may be an import alone
    return Step(_seconds(event, began), event["pid"], roles[event["pid"]], args["tier"], call, site, between, at)


def _child(event: Event, roles: dict[int, str], arrived: dict[int, int], began: int) -> Child:
    args = event["args"]
    pid = arrived.get(args["child"])
    role = roles.get(pid, "") if pid is not None else ""
    safe = args["child may use CUDA"]
    return Child(_seconds(event, began), event["pid"], pid, role, args["method"], args["maker"], args["tier"], safe, _site(args) or {})


def _touch(event: Event, roles: dict[int, str], began: int) -> Touch:
    args, pid = event["args"], event["pid"]
    said = (args["severity"], args["message"], args.get("call") or "")
    return Touch(_seconds(event, began), pid, roles[pid], event["name"], *said, _site(args))
