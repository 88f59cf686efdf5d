"""A finding as text for a terminal. ASCII only: it goes through exceptions, pipes and logs of every encoding.

Source lines are shown as written. It decides nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from . import _advice, _config
from ._advice import Advice
from ._journal import DRIVER, INITIALISED, QUERIED, Step
from ._places import Site
from ._verdict import Finding, Touch

WIDTH = 96  # characters; longer source lines are cut
PATH = 48  # longer paths lose their first folders
MAKERS = {
    "dataloader": "DataLoader",
    "stateful-dataloader": "StatefulDataLoader",
    "process": "multiprocessing.Process",
    "pool": "multiprocessing.Pool",
    "executor": "ProcessPoolExecutor",
    "datasets": "datasets.map",
}
SECOND_HALF = "move-in-parent"  # of the fix before it: what stays on the CPU in the worker is moved after it
VERBS = {INITIALISED: "started CUDA", QUERIED: "asked the CUDA driver (as is_available() does)", DRIVER: "woken the CUDA driver"}
UNSEEN = {"c-fork": "by C code, unseen by Python", "unknown": "not seen: before cudaguard came on"}
DEEP = "python -m cudaguard trace --deep SCRIPT names the line"
DID = {INITIALISED: "started", QUERIED: "queried"}


def text(finding: Finding) -> str:
    """The whole story: PyTorch's sentence, what happened in order, the fixes, the slug."""
    story = [line.replace("CUDA", finding.facts.word) for line in _story(finding)]
    parts = [finding.message, "", *story, "", *_places(finding), "", *_fixes(finding), *_tail(finding)]
    return "\n".join(parts)


def summary(finding: Finding) -> str:
    """One line for a list of findings."""
    site = finding.touch.site if finding.touch else finding.fork
    return f"[{finding.slug}] {finding.message.splitlines()[0] if finding.message else ''} ({place(site) if site else 'no place'})"


def place(site: Site) -> str:
    """`file:line`: relative where that is shorter, with its last folders only where it is long; `In [7], line 3` in a notebook."""
    return f"{site.cell}, line {site.line}" if site.cell else f"{short(site.file)}:{site.line}"


def short(file: str) -> str:
    """A path that a reader can still find: relative to the working folder, or its end."""
    try:
        file = os.path.normpath(file) if os.path.isabs(file) else file
        relative = os.path.relpath(file) if os.path.isabs(file) else file
    except (OSError, ValueError):  # the working folder is gone, or another drive
        relative = file
    best = file if relative.startswith("..") or len(relative) > len(file) else relative
    while len(best) > PATH and best.count(os.sep) > 1:
        best = best.removeprefix("...").lstrip(os.sep).partition(os.sep)[2]
        best = f"...{os.sep}{best}"
    return best


# What happened where no fork is to blame. {who} is the process, {detail} the part to blame.
MORE = {
    "worker-died": [
        "Nobody knows whether that is why: it left no exception. A crash in native code looks the same, and so does the",
        "system ending a process for want of memory.",
    ],
    "lost-gpu": ["Here the driver even says that there is no GPU, so a program that asks would quietly take the CPU."],
}

STORIES = {
    "forbidden-init": ("{detail}",),
    "unsendable-output": (
        "{who} returned something that cannot be sent to the main process: {detail}.",
        "PyTorch would print this in the worker, drop the batch, and wait for it for ever.",
    ),
    "pin-cuda-output": ("pin_memory=True asks to pin a batch that is on the GPU already. Only CPU tensors can be pinned.",),
    "ipc-broken": (
        "A CUDA tensor that came from another process cannot be used here. It was shared, not copied (CUDA IPC): the process",
        "that made it must live, and must keep it, until this one is done.",
    ),
}
SENT_ON = (
    "A CUDA tensor that came from another process was to be sent on. Only the process that made it can share it (CUDA IPC):",
    "send a copy, or send it from there.",
)


def _story(finding: Finding) -> list[str]:
    """What happened, for somebody who has never heard of a fork."""
    if finding.slug in STORIES:
        who = f"{_child(finding)}, process {finding.pid},"
        story = SENT_ON if _advice.SENT_ON in finding.message else STORIES[finding.slug]
        return [line.format(who=who, detail=finding.detail or "its output") for line in story]
    woke = finding.origin.pid if finding.origin else finding.ppid
    deed = "died" if finding.slug == "worker-died" else "touched CUDA"
    lines = [
        f"{_child(finding)}, process {finding.pid}, {deed}. It was forked from process {woke}, which had {VERBS[finding.tier or INITIALISED]}",
        "by then. A forked process is a copy, and CUDA does not survive being copied: the copy cannot use the GPU.",
    ]
    return lines + MORE.get(finding.slug, []) if finding.tier else []


def _child(finding: Finding) -> str:
    name = MAKERS.get(finding.maker or "", finding.maker or "unknown")
    if finding.worker:
        return f"{name} worker {finding.worker.id} of {finding.worker.num_workers}"
    return f"A child made by {name}"


def _places(finding: Finding) -> list[str]:
    rows = [] if finding.slug in STORIES else [row for step in _steps(finding) for row in _step(step)] or _unseen(finding)
    if finding.fork:
        made = "forked" if finding.start_method == "fork" else "started"
        rows += _row(made, finding.fork, f"makes process {finding.pid}")
    elif finding.tier and finding.slug not in STORIES:
        rows += _entry("forked", UNSEEN.get(finding.maker or "", UNSEEN["unknown"]), f"makes process {finding.pid}")
    return rows + (_forbidden(finding) if finding.slug == "forbidden-init" else _touch(finding.touch) if finding.touch else [])


def _forbidden(finding: Finding) -> list[str]:
    """The line that was refused, and the imports that led from it to the code that asked."""
    step = finding.origin
    if step is None or finding.touch is None:
        return []
    rows = _step(step) if step.between else _touch(finding.touch)
    bodies = [frame for frame in step.site.stack if frame.function == "<module>"]
    lines = [f"{short(frame.file)}:{frame.line}" for frame in bodies]
    return rows + ([f"{'':14}imports: {' -> '.join(lines)}"] if len(lines) > 1 else [])


def _steps(finding: Finding) -> list[Step]:
    """The first step, and the first one that went all the way: a query is often followed by the real start. Once, if one line did both."""
    first = list(finding.steps[:1])
    last = [step for step in finding.steps[1:] if step.tier == INITIALISED and first[0].tier != INITIALISED][:1]
    both = last and not first[0].between and first[0].site[:2] == last[0].site[:2]
    return last if both else first + last


def _step(step: Step) -> list[str]:
    if step.between is None:
        return _row(DID.get(step.tier, "woken"), step.site, f"process {step.pid}", step.call)
    down, up = step.between
    rows = _row("still down", down, f"process {step.pid}") + _row("found up", up, f"process {step.pid}, woken unseen between these two lines")
    return [*rows, " " * 14 + DEEP]


def _unseen(finding: Finding) -> list[str]:
    if finding.late is None:
        return _entry("started", "not seen: it was still starting, or the guard was off", f"process {finding.ppid}") if finding.tier else []
    came = f"cudaguard came on later, at {place(finding.late.site)}; import it first"
    woke = finding.ppid if finding.late.pid == finding.pid else finding.late.pid
    return [*_entry("started", "not seen", f"process {woke}"), " " * 14 + came]


def _touch(touch: Touch) -> list[str]:
    rows = _row("touched", touch.site, f"process {touch.pid}", touch.call)
    return rows + ([" " * 14 + f"PyTorch said: {touch.said}"] if touch.said else [])


def _row(label: str, site: Site, who: str, call: str = "") -> list[str]:
    inside = f", in {site.function}" if site.function != "<module>" else ""
    called = f"{who}, {call}" if call and call not in site.code else who
    return _entry(label, place(site) + inside, called) + ([" " * 14 + _cut(site.code)] if site.code else [])


def _entry(label: str, where: str, who: str) -> list[str]:
    return [f"  {label:<10}  {where:<44}  {who}".rstrip()]


def _cut(code: str) -> str:
    return code if len(code) <= WIDTH else code[: WIDTH - 4] + " ..."


def fixes(advice: Sequence[Advice]) -> list[str]:
    """The fixes, as lines: the best one, what belongs to it, and others."""
    lines = []
    for number, fix in enumerate(advice):
        label = "fix" if number == 0 else "and" if fix.id == SECOND_HALF else "or"
        first, *rest = fix.text.split("\n")
        lines += [f"  {label:<4} {first}", *(f"       {line}" for line in rest)]
    return lines


def _fixes(finding: Finding) -> list[str]:
    lines = [*fixes(finding.advice), *_no_way_out(finding)]
    return [*lines, ""] if lines else []


def _no_way_out(finding: Finding) -> list[str]:
    """Why the usual advice, to spawn, is not given here."""
    if finding.slug in STORIES or finding.maker not in MAKERS:
        return []
    if finding.facts.notebook:
        return ["  note The start method spawn is no way out in a notebook: what cells define does not pickle. Put it in a module to use it."]
    if finding.facts.unpicklable:
        return [f"  note The start method spawn is no way out as it stands: {finding.facts.unpicklable} does not pickle."]
    if not finding.facts.main_guard:
        lacking = 'the script has no `if __name__ == "__main__":`' if finding.facts.script else "the program is in no file that a child could import"
        return [f"  note The start method spawn is no way out as it stands: {lacking}."]
    return []


def _tail(finding: Finding) -> list[str]:
    acting = f" (mode {finding.facts.mode} is not built yet: this is mode error)" if finding.facts.mode in _config.NOT_BUILT else ""
    sim = " The GPU was simulated." if finding.facts.simulated else ""
    return [f"[{finding.slug}]{sim}{acting} More: python -m cudaguard explain {finding.slug}"]
