"""`trace --deep`: find the very line that wakes the driver, also where no hook sees it, by asking the driver at every line.

Only lines of the user's and of libraries are asked about, not torch's, Python's or ours: what wakes CUDA below one of those is
the deed of the line that called it. It ends when CUDA is up. `sys.monitoring` (Python 3.12) forgets a line that is of no interest
for good; `sys.settrace`, before, is told of every call.

For `trace -c "import x"` the bodies of modules and classes alone are asked about: each line of those runs once, so it costs half of what the
import itself costs, not three times as much, and names the line of the module. What a function did is the deed of the line that called it.

With several threads at work the line may be what another thread was at: the driver does not say who woke it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from . import _calls, _driver, _hooks, _journal, _places, _trace
from ._hooks import _notice, imports
from ._places import Frame, Site

SAMPLE, LINES = "for i in range(2000):\n    i\n", 4000  # to measure with
ROUNDS = 3
EVERY = 1000  # lines
SPARED = (_places.TORCH, _places.STANDARD, _places.GUARD)
BODIES = "bodies"  # in the variable: ask about the bodies of modules and classes alone
FUNCTION = 1  # CO_OPTIMIZED: every code but that of bodies

Trace = Callable[[FrameType, str, Any], Any]

_last: dict[int, tuple[CodeType, int]] = {}  # thread → the line that it is at; by number: a frame would keep its variables alive
_asking = False
_bodies = False
_lines = 0
_cost = 0.0  # seconds for a line, when nothing is loaded yet
_asked: list[float] = []  # seconds for a question, now and then: it costs more once a library has to be looked for
_stop: Callable[[], None]


def start() -> None:
    """Ask from now on, in this process and in the children it forks."""
    global _asking, _bodies, _cost, _stop
    if _asking or _driver.up() or _journal.current.steps:
        return
    _bodies = os.environ.get(_hooks.DEEP) == BODIES
    imports.asked_first.append(_tell)
    plain = _sample()
    _asking = True
    _stop = _monitor() if hasattr(sys, "monitoring") else _settrace()
    _cost = max(_sample() - plain, 0.0)
    _forget()
    atexit.register(_end)


def _sample() -> float:
    """Seconds for one line of code that is asked about, or that is not yet."""
    code = compile(SAMPLE, "<sample of cudaguard>", "exec")
    return min(_timed(code) for _ in range(ROUNDS)) / LINES


def _timed(code: CodeType) -> float:
    began = time.perf_counter()
    exec(code, {})
    return time.perf_counter() - began


def _forget() -> None:
    global _lines
    _lines = 0
    _last.clear()
    _asked.clear()


def _line(code: CodeType, number: int) -> None:
    """A line is about to run. If CUDA is up now, what ran until here woke it."""
    global _lines
    _lines += 1
    if _lines % EVERY == 0:
        _measure()
    thread = threading.get_ident()
    if _driver.up() and _asking:
        _found(*_last.get(thread, (code, number)))
    else:
        _last[thread] = code, number


def _tell() -> None:
    """CUDA is up, and an import is about to say so, which would name the lines around it."""
    at = _last.get(threading.get_ident())
    if at is not None and _asking:
        _found(*at)


def _measure() -> None:
    began = time.perf_counter()
    _driver.up()
    _asked.append(time.perf_counter() - began)


def _left(frame: FrameType) -> None:
    """A function is about to end, or a generator to pause: whoever called it goes on in the middle of a line."""
    _line(frame.f_code, frame.f_lineno)
    caller = frame.f_back
    while caller is not None and _spared(caller.f_code):
        caller = caller.f_back
    if caller is not None and _asking:
        _last[threading.get_ident()] = caller.f_code, caller.f_lineno


def _found(code: CodeType, number: int) -> None:
    """Note who woke CUDA, unless a hook does: it is in the middle of a watched call, or knows it by now."""
    if _notice.busy():
        return
    book = _notice.journal()
    if not book.steps and book.late is None and book.bad_fork() is None:
        site = _site(code, number)
        call = _calls.name(site._replace(file=code.co_filename, line=number))  # the user's line may be an import of the one that calls
        _notice.remark(book, book.stepped(_journal.DRIVER, call, site))
    _end()


def _site(code: CodeType, number: int) -> Site:
    """The stack as it was at that line: its frame is still there, but may have gone on to the next, or called somebody."""
    frames = list(_places.waiting())
    at = Frame(code.co_filename, number, code.co_name, -1)
    same = [i for i, frame in enumerate(frames) if (frame.file, frame.function) == (at.file, at.function)]
    return _places.from_frames((*frames[: same[-1]], at) if same else (*frames, at), _notice.journal().cut())


def _end() -> None:
    """Stop asking, and note what it cost."""
    global _asking
    if _asking:
        _asking = False
        _stop()
        imports.asked_first.remove(_tell)
        question = sorted(_asked)[len(_asked) // 2] if _asked else 0.0  # the median: this process may have been held up in one
        seconds = None if _bodies else round(_lines * (_cost + question), 6)  # there it is mostly that of being told of calls
        _trace.noted("deep", {"lines": _lines, "seconds": seconds})
        _forget()


def _spared(code: CodeType) -> bool:
    return (_bodies and bool(code.co_flags & FUNCTION)) or _places.kind(code.co_filename) in SPARED


def _monitor() -> Callable[[], None]:
    """Watch by sys.monitoring."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    tool = next(number for number in range(5, -1, -1) if monitoring.get_tool(number) is None)

    events = monitoring.events
    inner = events.LINE | events.PY_RETURN | events.PY_YIELD

    def on_line(code: CodeType, number: int) -> Any:
        return monitoring.DISABLE if _spared(code) else _line(code, number)

    def on_start(code: CodeType, offset: int) -> Any:
        if _spared(code):
            return monitoring.DISABLE
        if _bodies:  # of these alone: to be told of the others costs, even if each is told once
            monitoring.set_local_events(tool, code, inner)
        return _line(code, code.co_firstlineno)

    def on_leave(code: CodeType, *rest: object) -> Any:
        return monitoring.DISABLE if _spared(code) else _left(sys._getframe(1))

    def on_unwind(code: CodeType, *rest: object) -> None:  # may not be disabled
        if not _spared(code):
            _left(sys._getframe(1))

    def stop() -> None:
        monitoring.set_events(tool, 0)
        for event in table:  # bodies that still run would go on calling
            monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)

    monitoring.use_tool_id(tool, "cudaguard")
    table = {events.LINE: on_line, events.PY_START: on_start, events.PY_RETURN: on_leave, events.PY_YIELD: on_leave, events.PY_UNWIND: on_unwind}
    for event, callback in table.items():
        monitoring.register_callback(tool, event, callback)
    monitoring.set_events(tool, events.PY_START | events.PY_UNWIND | (0 if _bodies else inner))
    return stop


def _settrace() -> Callable[[], None]:
    """Watch by sys.settrace, in this thread and those to come. Whoever traces already, a debugger or coverage, goes on instead of us."""
    if sys.gettrace() is not None:
        print("cudaguard: another tracer is at work, so --deep sees only what the hooks see", file=sys.stderr)
        return lambda: None
    sys.settrace(_called)
    threading.settrace(_called)
    return _untrace


def _called(frame: FrameType, event: str, arg: Any) -> Trace | None:
    if not _asking:
        sys.settrace(None)  # a thread that began before the end
        return None
    if _bodies and frame.f_code.co_flags & FUNCTION:  # so it is for nearly all calls
        return None
    return None if _spared(frame.f_code) else _traced


def _traced(frame: FrameType, event: str, arg: Any) -> Trace | None:
    if event == "line":
        _line(frame.f_code, frame.f_lineno)
    elif event == "return":
        _left(frame)
    return _traced if _asking else None


def _untrace() -> None:
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type,unused-ignore]
