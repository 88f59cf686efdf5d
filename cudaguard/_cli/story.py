"""A program's history as a short story for a terminal: who asked for CUDA first, and what happened in order. ASCII only."""

from __future__ import annotations

import itertools
import linecache
import sys
from collections.abc import Iterable

from .. import _places, _text
from .._text import MAKERS
from . import blocks, lines, terminal
from .history import Child, History, Site, Step, Touch
from .lines import Line

FAR = {
    "driver": "the driver was woken (cuInit), not by torch's own initialisation",
    "queried": "torch asked the driver, as is_available() does, and that woke it",
    "initialised": "torch initialised CUDA",
}
MADE = {"fork": "forked", "spawn": "spawned", "forkserver": "by server"}
MANY = 8  # lines that may be meant
LOADERS = ("dataloader", "stateful-dataloader")
Row = tuple[float, list[str]]


def tell(history: History, frames: bool = False, before: str = "") -> str:
    """The whole story; `frames` shows every frame of each stack, `before` says what had woken CUDA already."""
    return "\n".join([*_first(history, frames, before), "", *_order(history, frames)]).rstrip()


def _first(history: History, frames: bool, before: str) -> list[str]:
    step = history.first
    if step is None or before:
        return [_heading(before or "Nobody initialised CUDA, and nobody asked for it.")]
    last = f"{FAR[step.tier]}" if history.tier == step.tier else f"{FAR[step.tier]}; later {FAR[str(history.tier)]}"
    title = _heading("Who asked for CUDA first")
    if step.between:
        return [title, *_unseen(step, frames), "", f"  How far it went: {last}."]
    who = f"process {step.pid}, {step.role}"
    return [
        title,
        f"  {blocks.place(step.site)}{_inside(step.site)}  ({who})",
        *_code(step.site, 6),
        *_chain(step.site, frames),
        "",
        *_far(step, last),
    ]


def _far(step: Step, last: str) -> list[str]:
    return [*_which(step.at), *([f"  The call: {step.call}"] if step.call else []), f"  How far it went: {last}."]


def _which(at: Line | None) -> list[str]:
    """Which line of a library's it was."""
    if at is None or not at.module:
        return []
    where = f"module {at.module} in package {at.package}" + (f", in {at.function}" if at.function != "<module>" else "")
    if at.exact:
        return [f"  The line: line {at.line} of {where}"]
    return [f"  The line: {_one_of(at)} {where}. Add --deep to find {'out' if len(at.candidates) == 1 else 'it'}."]


def _one_of(at: Line) -> str:
    if len(at.candidates) == 1:
        return f"probably line {at.candidates[0]}, the only one that calls anything, of"
    few = len(at.candidates) <= MANY
    return f"one of the lines {', '.join(map(str, at.candidates))} of" if at.candidates and few else "one in the body of"


def _unseen(step: Step, frames: bool) -> list[str]:
    """Where no hook saw it: the two lines around it."""
    down, up = step.between
    lines = [f"  something that no hook sees, between these two lines (process {step.pid}, {step.role}):"]
    for label, site in (("still down", down), ("found up", up)):
        lines += [f"    {label:<10}  {blocks.place(site)}{_inside(site)}", *_code(site, 16)]
    return [*lines, *_chain(up, frames), "  Add --deep to find the line itself."]


def _chain(site: Site, frames: bool) -> list[str]:
    """The calls and imports that led there, outermost first."""
    whole = site.get("stack") or []
    stack = whole if frames else [frame for frame in lines.below(whole) if lines.matters(frame["file"])]
    if len(stack) < 2:
        return []
    rows = [(f"{_file(frame['file'])}:{frame['line']}", _line(frame["file"], frame["line"])) for frame in stack]
    width = min(max(len(place) for place, _ in rows), 44)
    return ["  by way of", *(f"      {place:<{width}}  {_text._cut(code)}".rstrip() for place, code in rows)]


def _file(file: str) -> str:
    return _places.cell(file) or _text.short(file)


def _line(file: str, line: int) -> str:
    return linecache.getline(file, line).strip()


def _order(history: History, frames: bool) -> list[str]:
    """Everything in the order of time; children that one line makes in a row are one entry."""
    told = {touch.pid for touch in history.touches}
    rows: list[Row] = [(step.seconds, _step(step, frames)) for step in history.steps]
    rows += [(group[0].seconds, _children(group, told, frames)) for group in _groups(history.children)]
    rows += [(touch.seconds, _touch(touch, frames)) for touch in history.touches]
    if not rows:
        return []
    return [_heading("What happened, in order (seconds since the start)"), *(line for _, lines in sorted(rows, key=_time) for line in lines)]


def _time(row: Row) -> float:
    return row[0]


def _groups(children: Iterable[Child]) -> list[list[Child]]:
    def alike(child: Child) -> tuple[object, ...]:
        return child.parent, child.method, child.maker, child.safe, child.tier, child.site["file"], child.site["line"]

    return [list(group) for _, group in itertools.groupby(children, alike)]


def _step(step: Step, frames: bool) -> list[str]:
    if step.between:
        return _entry(step.seconds, "found up", step.site, f"process {step.pid}, {step.role}", frames)
    who = f"process {step.pid}, {step.role}" + (f", {step.call}" if step.call and step.call not in step.site["code"] else "")
    return _entry(step.seconds, step.tier, step.site, who, frames)


def _children(group: list[Child], told: set[int], frames: bool) -> list[str]:
    first = group[0]
    lines = _entry(first.seconds, MADE[first.method], first.site, f"process {first.parent} makes {_named(group)}", frames)
    return [*lines, " " * 23 + _safety(group, told)]


def _named(group: list[Child]) -> str:
    """`DataLoader workers 0 to 3 of 4 (processes 11 to 14)`."""
    maker, count = MAKERS.get(group[0].maker, group[0].maker), len(group)
    pids = [str(child.pid) for child in group if child.pid is not None]
    shown = ", ".join(pids if len(pids) < 5 else [*pids[:3], "...", pids[-1]])
    what = "worker" if group[0].maker in LOADERS else "child"
    many = f"{count} {maker} {what if count == 1 else {'worker': 'workers', 'child': 'children'}[what]}"
    return f"{many} ({shown})" if pids else many


def _safety(group: list[Child], told: set[int]) -> str:
    if group[0].safe:
        return "safe: CUDA was not up in the parent" if group[0].method == "fork" else "safe: a new process has a CUDA of its own"
    used = sum(child.pid in told for child in group)
    deed = (
        f"{used} of {len(group)} touched it" if used else "none of them touched it, so nothing is wrong" if len(group) > 1 else "it did not touch it"
    )
    return f"not safe: CUDA was up {f'({group[0].tier}) ' if group[0].tier else ''}in the process that was copied; {deed}"


def _touch(touch: Touch, frames: bool) -> list[str]:
    label = "touched" if touch.severity != "note" else "note"
    call = f", {touch.call}" if touch.call and touch.site and touch.call not in touch.site["code"] else ""
    said = _text._cut(f"[{touch.slug}] {touch.severity}: {(touch.message.splitlines() or [''])[0]}")
    return [*_entry(touch.seconds, label, touch.site, f"process {touch.pid}, {touch.role}{call}", frames), " " * 23 + said]


def _entry(seconds: float, label: str, site: Site | None, who: str, frames: bool) -> list[str]:
    head = f"  {seconds:7.3f}  {label:<12} "
    if site is None:
        return [f"{head}{who}"]
    lines = [f"{head}{blocks.place(site) + _inside(site):<44}  {who}", *_code(site, 23)]
    return lines + ([" " * 21 + line for line in _chain(site, True)] if frames else [])


def _inside(site: Site) -> str:
    return f", in {site['function']}" if site["function"] != "<module>" else ""


def _code(site: Site, indent: int) -> list[str]:
    return [" " * indent + _text._cut(site["code"])] if site["code"] else []


def _heading(text: str) -> str:
    return terminal.heading(text, sys.stderr)
