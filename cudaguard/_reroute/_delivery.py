"""The parent's side: parcels are opened in the main thread, and each line that was rerouted is told once."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any, NamedTuple

from .. import _advice, _provenance, _respond, _rewrite, _source, _text
from .._places import Site
from .._respond import safe
from .._verdict import Finding
from . import Crossing

Place = tuple[str, int]  # file, line
Told = tuple[dict[str, object], str]


class News(NamedTuple):
    """What the parent hears of for the first time: lines that were rerouted, and lines whose work is heavy."""

    first: list[Told]
    heavy: list[Told]


class Noted(Crossing):
    """An output with news. What is in it crosses as it would without."""

    def __init__(self, data: Any, news: News) -> None:
        self.data, self.news = data, news

    def pin_memory(self, device: Any = None) -> Noted:
        """What torch's pin thread calls."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return Noted(pin_memory(self.data, device), self.news)  # type: ignore[no-untyped-call]

    def delivered(self) -> Any:
        """Tell the news, and deliver what is inside."""
        _hear(self.news.first)
        _weigh(self.news.heavy)
        return self.data.delivered() if isinstance(self.data, Crossing) else self.data


class Tally:
    """Batches and bytes that one line's data came in."""

    def __init__(self, where: str) -> None:
        self.where, self.batches, self.bytes = where, 0, 0


tallies: dict[Place, Tally] = {}  # lines that were told on stderr
_heard: set[Place] = set()
_weighed: set[Place] = set()
_pid = 0


@safe(None)
def _hear(news: list[Told]) -> None:
    for finding, line in news:
        place = _place(finding)
        if place in _heard:
            continue
        _heard.add(place)
        _respond.received(finding, line or str(finding["message"]))
        if line:
            tallies[place] = Tally(_text.short(str(place[0])) + f":{place[1]}")
            _at_exit()
            print(line, file=sys.stderr)


@safe(None)
def _weigh(news: list[Told]) -> None:
    for finding, line in news:
        place = _place(finding)
        if place in _weighed:
            continue
        _weighed.add(place)
        if not _amended(place, str(finding["message"]), line):
            _respond.received(finding, line)
        print(line, file=sys.stderr)


def _amended(place: Place, message: str, line: str) -> bool:
    """Add to what is known of a line already: there is one finding of a place."""
    for i, (known, words) in enumerate(_respond.findings):
        if known["slug"] == "rerouted" and _place(known) == place:
            said = str(known["message"])
            _respond.findings[i] = {**known, "message": said if message in said else f"{said}; {message}"}, f"{words}\n{line}"
            return True
    return False


def _place(finding: dict[str, object]) -> Place:
    touch: Any = finding["touch"] or {}
    return touch.get("file"), touch.get("line")


def _at_exit() -> None:
    global _pid
    if _pid != os.getpid():
        _pid = os.getpid()
        atexit.register(_summary)


@safe(None)
def counted(places: tuple[Place, ...], size: int) -> None:
    """A batch of so many bytes was moved to the GPU, for these lines."""
    for place in places:
        if place in tallies:
            tallies[place].batches += 1
            tallies[place].bytes += size


def _summary() -> None:
    """At the parent's exit: how much was rerouted."""
    if _pid != os.getpid():
        return
    for tally in tallies.values():
        if tally.batches:
            print(f"cudaguard: rerouted {tally.where}: {tally.batches} batches, {human(tally.bytes)} in all", file=sys.stderr)


def line(finding: Finding, size: int) -> str:
    """One line for a terminal: where, what became of it, and the permanent fix. `size` is the bytes of a batch that move."""
    site = finding.touch.site if finding.touch else None
    if site is None:
        return ""
    batch = f"batches of {human(size)} are moved in the main process" if size else "its result comes back to the CPU by itself"
    move = ' and `batch.to("cuda", non_blocking=True)` in the loop' if size and not _advice.mover(finding.fork) else ""
    what = f"`{site.code}`" if site.code else "what it puts on the GPU"  # timeit and exec leave no source to read
    return f"cudaguard: rerouted {_text.place(site)}: {what} stays on the CPU in the worker; {batch}. For good: {_fix(finding, site)}{move}"


INSTEAD = {"set-default-device": 'call `torch.set_default_device("cpu")` in a worker_init_fn'}
KEEP = "keep that data on the CPU"


def _fix(finding: Finding, site: Site) -> str:
    """What to write in place of a line, in one line."""
    best, call = finding.advice[0].id if finding.advice else "", finding.touch.call if finding.touch else ""
    if best == "copy-dataset-to-cpu":
        return _held(finding, site)
    if best in INSTEAD:
        return INSTEAD[best]
    code = _source.statement(site.file, site.line)
    kept = _rewrite.with_map_location(code) if best == "map-location" else _rewrite.without_cuda(code, call)
    if kept == code:
        return "take the GPU out of that line"
    return "delete that line" if _rewrite.does_nothing(kept) else f"write `{' '.join(kept.split())}` there"


def _held(finding: Finding, site: Site) -> str:
    """What to write where data was put on the GPU that the dataset holds."""
    made = _provenance.of(site, finding.fork, finding.steps)[: _advice.MOST]
    return " and ".join(f"write `{' '.join(kept.split())}` at {_text.place(s)}" for s in made if (kept := _provenance.on_cpu(s))) or KEEP


def heavy_line(finding: Finding) -> str:
    """One line for a terminal: heavy work, its share, and where it belongs."""
    where = _text.place(finding.touch.site) if finding.touch else ""
    return f"cudaguard: rerouted {where}: {finding.message}; do it after the loader, on the GPU"


def human(size: float) -> str:
    """Bytes for people: 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return ""
