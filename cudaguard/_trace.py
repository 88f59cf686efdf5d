"""Write a Chrome trace, for Perfetto and chrome://tracing: a lane for each process, marks for what happened, arrows for forks.

The file is a JSON array whose end is never written: both viewers take it so, and it stays readable if the program dies.
Each line after the first begins with its comma, so that the file and a "]" are JSON at any time. An arrow must begin and
end inside a slice of its lane; so making a child is a slice in the parent's lane, and coming to life one in the child's.

Hooks call this always. Without a trace it costs them one call that returns at once, and loads nothing.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from . import _config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from ._journal import Step
    from ._verdict import Finding

    Event = dict[str, Any]

MAIN, SERVER = "main process", "multiprocessing.forkserver"
SHORTEST = 2  # microseconds; an arrow's end lies in between
METHODS = {"fork": "forked", "spawn": "spawned", "forkserver": "made by the fork server"}
OF_MULTIPROCESSING = ("/multiprocessing/", "/multiprocess/", "/billiard/")


class Ticket(NamedTuple):
    """What a child needs for its lane. It reaches a forked child by memory, a spawned one with its preparation data."""

    flow: int
    began: int  # microseconds
    method: str
    role: str
    script: str
    parent: int
    place: dict[str, object]


_role = MAIN
_script: str | None = None
_begun: set[str] = set()  # files that have their first line; a forked child knows this from its parent
_named: tuple[str, int] | None = None  # the file and process whose lane has its name
_refused: set[str] = set()


def started() -> None:
    """The guard watches this process from now on. A command of the guard's own is no event: its program is, see `entitle`."""
    if _config.current().trace is not None and not _own_command():
        _emit()


def _own_command() -> bool:
    """Whether this is `python -m cudaguard ...` or `cudaguard ...`, and no program of the user's yet."""
    words = sys.orig_argv
    module = words[words.index("-m") + 1 :][:1] if "-m" in words and sys.argv[:1] == ["-m"] else []
    return _script is None and (module == ["cudaguard"] or os.path.basename(sys.argv[0] if sys.argv else "") == "cudaguard")


def entitle(name: str) -> None:
    """Say what the program is called, where a command starts it: `__main__` is still the command when the guard comes on."""
    global _script
    _script = name
    started()


def stepped(step: Step) -> None:
    """CUDA went one tier up here."""
    if _config.current().trace is not None:
        between = {"between": [site.as_dict() for site in step.between]} if step.between else {}
        _emit(_instant(f"CUDA {step.tier}", "cuda", {"tier": step.tier, "call": step.call, **step.site.as_dict(), **between}))


def found(finding: Finding) -> None:
    """Something was found."""
    if _config.current().trace is not None:
        known = finding.as_dict()
        site = finding.touch.site if finding.touch else finding.fork
        facts = {name: known[name] for name in ("severity", "message", "tier", "maker", "start_method", "simulated", "time")}
        seen = {"origin": finding.origin.site if finding.origin else None, "fork": finding.fork}
        places = {name: f"{place.file}:{place.line}" for name, place in seen.items() if place}
        call = {"call": finding.touch.call} if finding.touch else {}
        _emit(_instant(finding.slug, "finding", {**facts, **call, **places, **(site.as_dict() if site else {})}))


def noted(name: str, args: dict[str, object]) -> None:
    """Something that is no fault and nothing of CUDA's: what a command changed in the program."""
    if _config.current().trace is not None:
        _emit(_instant(name, "cudaguard", args))


def depart(method: str, tier: str | None) -> Ticket | None:
    """A child is about to be made here; the ticket is for :func:`departed` and, in the child, for :func:`arrived`."""
    if _config.current().trace is None:
        return None
    from . import _journal, _makers, _places

    site = _places.here(_journal.current.cut())
    maker, free = _makers.maker(site.stack), method != "fork" or tier is None
    flow = int.from_bytes(os.urandom(6), "big")  # no count and no pid: those of two processes, or of two runs, may be alike
    facts: dict[str, object] = {"method": method, "tier": tier, "child may use CUDA": free, "maker": maker, "child": flow, **site.as_dict()}
    return Ticket(flow, _now(), method, f"{_who(maker)}, {METHODS[method]}", _name(), os.getpid(), facts)


def departed(ticket: Ticket | None) -> None:
    """The child is made, or on its way: draw the parent's end of the arrow."""
    if ticket is not None:
        slice_ = _slice(ticket.method, ticket, ticket.place)
        _emit(slice_, {**_arrow("s", ticket), "ts": ticket.began + 1})


def arrived(ticket: Ticket | None) -> None:
    """This process is the child of a ticket: name its lane, and draw its end of the arrow."""
    global _role, _script, _named
    if ticket is None:
        return
    _role, _script, _named = ticket.role, ticket.script, None
    slice_ = _slice(METHODS[ticket.method], ticket, {"parent": ticket.parent, **ticket.place})
    _emit(slice_, {**_arrow("f", ticket), "bp": "e", "ts": slice_["ts"] + slice_["dur"] - 1})


def _slice(name: str, ticket: Ticket, args: dict[str, object]) -> Event:
    return {**_event(name, "process", "X"), "ts": ticket.began, "dur": max(_now() - ticket.began, SHORTEST), "args": args}


def _arrow(end: str, ticket: Ticket) -> Event:
    return {**_event("child", "process", end), "id": ticket.flow}


def _instant(name: str, category: str, args: dict[str, object]) -> Event:
    return {**_event(name, category, "i"), "s": "t", "args": args}


def _event(name: str, category: str, phase: str) -> Event:
    import threading

    return {"name": name, "cat": category, "ph": phase, "ts": _now(), "pid": os.getpid(), "tid": threading.get_native_id()}


def _now() -> int:
    """Microseconds on the one clock that all processes of a machine share and nobody sets."""
    import time

    return time.monotonic_ns() // 1000


def _who(maker: str) -> str:
    """What to call a child."""
    from ._text import MAKERS

    label, process = MAKERS.get(maker, maker), _starting()
    if process is None:
        return f"{label} child"
    return f"{label} {_worker_of(process) or process.name}"


def _starting() -> Any:
    """The process object that multiprocessing is starting: a local variable of the frames that do it, and nowhere else by then."""
    from . import _places

    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename.replace("\\", "/")
        if _places.kind(frame.f_code.co_filename) != _places.GUARD:
            if not any(part in file for part in OF_MULTIPROCESSING):
                return None  # further out they may be this process's own start
            if "process_obj" in frame.f_locals:
                return frame.f_locals["process_obj"]
        frame = frame.f_back
    return None


def _worker_of(process: Any) -> str:
    """`worker 0 of 4`, for a process that is to run a loader's loop."""
    import inspect

    from . import _worker

    target = getattr(process, "_target", None)
    if target not in (_worker.torch_loop, _worker.stateful_loop):
        return ""
    given = inspect.signature(target).bind(*process._args, **process._kwargs).arguments
    return f"worker {given['worker_id']} of {given['num_workers']}"


def _name() -> str:
    """What the program is called: its script or module."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _script or (f"-m {spec.name}" if spec is not None else os.path.basename((sys.argv or [""])[0]) or "python")


def _emit(*events: Event) -> None:
    """Append events, after the name of this process's lane if it has none yet. A file that cannot be written ends the trace, not the program."""
    global _named
    path = _config.current().trace
    if path is None:
        return
    named = (path, os.getpid()) == _named
    try:
        _append(path, [*([] if named else [_lane()]), *events])
        _named = (path, os.getpid())
    except OSError as error:
        _refuse(path, error)


def _lane() -> Event:
    # What differs comes first: a viewer cuts long names.
    role = "fork server" if _role == MAIN and any(SERVER in word for word in sys.orig_argv) else _role
    return {**_event("process_name", "__metadata", "M"), "args": {"name": f"{role} ({_name()}, {os.getpid()})", "role": role}}


def _append(path: str, events: list[Event]) -> None:
    import json

    from . import _respond

    lines = [json.dumps(event, default=str) for event in events]
    if path not in _begun and lines:
        _begin(path, lines.pop(0))
        _begun.add(path)
    if lines:
        _respond.append(path, "".join(f",{line}\n" for line in lines))


def _begin(path: str, line: str) -> None:
    """Write a process's first line, which is also the file's if it is empty: under a lock, since twenty processes may begin at once."""
    from . import _respond

    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        _lock(handle)
        size = os.fstat(handle).st_size
        if size and not _goes_on(handle, size):
            raise OSError("it holds something else than a trace that can go on")
        _respond.append(path, f"{',' if size else '['}{line}\n")
    finally:
        os.close(handle)  # and the lock is gone


def _goes_on(handle: int, size: int) -> bool:
    """Whether a file is a trace of ours, perhaps of an earlier run: a slip in the variable must not spoil a script."""
    begin = os.read(handle, 2)
    os.lseek(handle, max(0, size - 2), os.SEEK_SET)
    return begin == b"[{" and os.read(handle, 2) == b"}\n"


def _lock(handle: int) -> None:
    """Lock a file until it is closed. Windows has no such lock, nor forks that begin at once."""
    try:
        import fcntl
    except ImportError:
        return
    fcntl.flock(handle, fcntl.LOCK_EX)


def _refuse(path: str, error: OSError) -> None:
    """Say once why there is no trace, here and in the children to come, and go on without."""
    _config.use(_config.current()._replace(trace=None))
    os.environ.pop("CUDAGUARD_TRACE", None)
    if path not in _refused and sys.stderr is not None:
        _refused.add(path)
        print(f"cudaguard: cannot write the trace {path}: {error.strerror or error}", file=sys.stderr)
