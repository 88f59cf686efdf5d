"""Stacks, and the user's line in them.

A :class:`Site` holds names and numbers only. A frame or a traceback would keep every local variable alive, GPU tensors
among them. Sources are read when a site is shown, not when it is noted.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# The guard's own files beside the package; the last is the command.
OUTSIDE = ("_cudaguard_start.py", "_cudaguard_pytest.py", f"{os.sep}bin{os.sep}cudaguard")

TYPED, COMMAND = "<stdin>", "<string>"  # what Python calls a program without a file: read from stdin, or given by -c
# Who makes code as the program runs, and leaves its source in linecache: attrs, torch.fx, sympy, beartype.
MAKERS = ("<attrs generated ", "<eval_with_key>", "<lambdifygenerated-", "<@beartype(")
# Functions that run a module's body: importlib's, and those of loaders that others put in its place, as pytest and wrapt do.
LOADING = {"import_module", "reload", "exec_module", "load_module", "__import__"}

USER, LIBRARY, TORCH, STANDARD, GUARD = range(5)


class Frame(NamedTuple):
    """One call on a stack. `at` is the instruction: it tells a frame that still waits from one that went on."""

    file: str
    line: int
    function: str
    at: int


class Span(NamedTuple):
    """The source text of the call in progress: first line, last line, first column, last column."""

    line: int
    end_line: int
    column: int
    end_column: int


class Site(NamedTuple):
    """A place in a program: the user's line, and the whole stack that led there, outermost frame first."""

    file: str
    line: int
    function: str
    stack: tuple[Frame, ...] = ()
    span: Span | None = None
    cell: str | None = None  # of a notebook: its number when the place was noted, since the same cell may be run again

    @property
    def code(self) -> str:
        """The source line, or "" where there is no source to read."""
        import linecache  # with tokenize it takes a millisecond, and most programs never show a site

        return linecache.getline(self.file, self.line).strip()

    @property
    def position(self) -> int:
        """Which frame of the stack is the user's line."""
        rows = [i for i, frame in enumerate(self.stack) if (frame.file, frame.line) == (self.file, self.line)]
        return rows[-1] if rows else len(self.stack) - 1

    @property
    def direct(self) -> bool:
        """Whether an import that runs here is the line's own, not one in a function that it calls.

        The stack tells, but for names that a package loads when they are asked for, by functions of its own: `from transformers import X`.
        """
        inner = [frame for frame in self.stack[self.position + 1 :] if frame.function not in LOADING]
        return not inner or _body(inner[0]) or self.code.startswith(("import ", "from "))

    @property
    def importing(self) -> Frame | None:
        """The innermost module's body that runs because this line imports; None where it imports nothing, or ran no more of it."""
        bodies = [frame for frame in self.stack[self.position + 1 :] if _body(frame)]
        return bodies[-1] if bodies and self.direct else None

    @property
    def importer(self) -> Frame | None:
        """The user's frame that imports the module in whose body this line stands; None where the line is in no such body."""
        around = [frame for frame in self.stack[: self.position] if frame.function not in LOADING]
        inside = around and _body(self.stack[self.position])
        return around[-1] if inside and kind(around[-1].file) == USER else None

    def as_dict(self) -> dict[str, object]:
        """The site as a report shows it."""
        stack = [{"file": f.file, "line": f.line, "function": f.function} for f in self.stack]
        return {"file": self.file, "line": self.line, "function": self.function, "code": self.code, "cell": self.cell, "stack": stack}


def _body(frame: Frame) -> bool:
    """Whether a frame is a module's body: what `exec` runs is called so too, but has no file."""
    return frame.function == "<module>" and not frame.file.startswith("<")


def here(cut: tuple[Frame, ...] = ()) -> Site:
    """The place where this thread is now, without the frames of `cut` (what a parent was doing when it forked)."""
    return _site([(f, f.f_lineno, f.f_lasti) for f in _walk(sys._getframe(1))][::-1], cut)


def waiting() -> tuple[Frame, ...]:
    """The whole stack of this thread, in the form that `cut` takes. Taken at every fork, so written out for speed."""
    found: list[Frame] = []
    frame: FrameType | None = sys._getframe(1)
    make = tuple.__new__  # a NamedTuple's own takes twice as long
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        if (_kinds.get(file) or kind(file)) != GUARD:
            found.append(make(Frame, (file, frame.f_lineno, code.co_name, frame.f_lasti)))
        frame = frame.f_back
    found.reverse()
    return tuple(found)


def raised_at(error: BaseException, cut: tuple[Frame, ...] = ()) -> Site:
    """The place where an exception was raised, for somebody who has just caught it."""
    inner = [(t.tb_frame, t.tb_lineno, t.tb_lasti) for t in _links(error.__traceback__)]
    outer = [(f, f.f_lineno, f.f_lasti) for f in _walk(inner[0][0].f_back if inner else sys._getframe(1))]
    return _site(outer[::-1] + inner, cut)


def innermost(error: BaseException) -> TracebackType | None:
    """The link of the line that raised an exception; None where it was never raised here."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def trimmed(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the guard's own frames: what a user reads is the user's program."""
    kept = None
    for link in reversed(list(_links(trace))):
        kept = TracebackType(kept, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return kept


def line_here() -> Site:
    """The user's line alone, for places that are noted often and seldom shown."""
    return line_of(sys._getframe(1))


def line_of(frame: FrameType) -> Site:
    """The user's line on the stack of a frame: by the same rule as a whole site, without looking further than it must."""
    made = library = other = None
    step: FrameType | None = frame
    while step is not None:
        file = step.f_code.co_filename
        whose = kind(file)
        if whose == USER and not generated(file):
            break
        made = made or (step if whose == USER else None)
        library = library or (step if whose == LIBRARY else None)
        other = other or (step if whose != GUARD else None)
        step = step.f_back
    found = step or made or library or other or frame
    return Site(found.f_code.co_filename, found.f_lineno, found.f_code.co_name, cell=cell(found.f_code.co_filename))


def cell(file: str) -> str | None:
    """The notebook cell that a file stands for, as `In [7]`: a kernel compiles each cell as a file that does not exist.

    IPython is asked only if it is there. Its source stays in linecache under this name, however the cell is edited.
    """
    number = _cells().get(file)
    return None if number is None else f"In [{number}]"


def cells() -> list[str]:
    """The files that stand for the cells which were run, the last one first."""
    return sorted(_cells(), key=_cells().__getitem__, reverse=True)


def _cells() -> dict[str, int]:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", _no_shell)()
    return getattr(getattr(shell, "compile", None), "_filename_map", {})


def _no_shell() -> None:
    return None


def kind(file: str) -> int:
    """Whose file this is: the user's, a library's, torch's, the standard library's or the guard's own."""
    known = _kinds.get(file)
    if known is None:
        known = _kinds[file] = _classify(file)
    return known


def generated(file: str) -> bool:
    """Whether the user's program made this code as it ran, as dataclasses make an `__init__`: the line that calls it is the user's.

    A cell of a notebook has such a name too, and so has a doctest; but there is source to read under it.
    """
    if not file.startswith("<") or file == TYPED:
        return False
    if file == COMMAND:  # not looked up: dataclasses use the name too, and Python 3.13 keeps the text of -c under it
        return not _commanded()
    known = _generated.get(file)
    if known is None:
        known = _generated[file] = file.startswith(MAKERS) or not _readable(file)
    return known


def _commanded() -> bool:
    """Whether the program was given by -c and defines functions. What only starts a worker, as spawn and xdist do, defines none."""
    given = " ".join(sys.orig_argv) if getattr(sys, "argv", None) and sys.argv[0] == "-c" else ""
    return "def " in given or "lambda" in given


def _readable(file: str) -> bool:
    linecache = sys.modules.get("linecache")  # whoever keeps a source in it has loaded it
    return linecache is not None and bool(linecache.getlines(file))


_generated: dict[str, bool] = {}


def library(site: Site) -> bool:
    """Whether no line of the user's was found on this stack."""
    return kind(site.file) != USER


_kinds: dict[str, int] = {}


def _classify(file: str) -> int:
    if file.startswith(HERE) or file.endswith(OUTSIDE):
        return GUARD
    if _under_torch(file):
        return TORCH
    if any(part in file for part in PACKAGES) or file.startswith(_installed()):
        return LIBRARY
    return STANDARD if file.startswith((STDLIB, "<frozen ")) else USER


def _under_torch(file: str) -> bool:
    torch = sys.modules.get("torch")
    home = getattr(torch, "__file__", None)
    return bool(home) and file.startswith(os.path.dirname(str(home)) + os.sep)


def _installed() -> tuple[str, ...]:
    """Folders of installed packages that are not called site-packages. sysconfig and site are loaded only if they already are."""
    site = sys.modules.get("site")
    folders = _schemes(sys.modules.get("sysconfig"))
    folders += [site.USER_SITE] if site and isinstance(site.USER_SITE, str) else []
    return tuple(folder + os.sep for folder in folders if folder)


def _schemes(config: Any) -> list[str]:
    """What sysconfig says. While it is being imported it has no `get_path`, and while it imports its own data the answer has holes (3.13)."""
    try:
        return [config.get_path(name) for name in ("purelib", "platlib")] if config is not None else []
    except (AttributeError, KeyError):
        return []


def _walk(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        if kind(frame.f_code.co_filename) != GUARD:
            yield frame
        frame = frame.f_back


def _links(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        if kind(trace.tb_frame.f_code.co_filename) != GUARD:
            yield trace
        trace = trace.tb_next


def from_frames(frames: tuple[Frame, ...], cut: tuple[Frame, ...] = ()) -> Site:
    """The place that a whole stack was at, without the frames of `cut`."""
    own = frames[shared(frames, cut) :] or frames
    user = own[_user([frame.file for frame in own])]
    stack = tuple(frame for frame in own if not frame.file.startswith("<frozen importlib"))
    return Site(user.file, user.line, user.function, stack, cell=cell(user.file))


def _site(calls: list[tuple[FrameType, int, int]], cut: tuple[Frame, ...]) -> Site:
    frames = tuple(Frame(f.f_code.co_filename, line, f.f_code.co_name, at) for f, line, at in calls)
    skip = shared(frames, cut) % len(frames)
    user = _user([frame.file for frame in frames[skip:]]) + skip
    return from_frames(frames, cut)._replace(span=_span(calls[user][0].f_code, calls[user][2]))


def shared(frames: tuple[Frame, ...], cut: tuple[Frame, ...]) -> int:
    """How many outermost calls of a stack still wait where `cut` has them: those are a parent's."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(frames, cut, strict=False)))


def _user(files: list[str]) -> int:
    """Index of the user's frame: innermost outside all libraries, else outside torch and the standard library, else innermost."""
    kinds = [kind(file) for file in files]
    found = [i for i, whose in enumerate(kinds) if whose == USER]
    written = [i for i in found if not generated(files[i])]
    some = written or found or [i for i, whose in enumerate(kinds) if whose == LIBRARY]
    return some[-1] if some else len(kinds) - 1


def _span(code: CodeType, at: int) -> Span | None:
    """Where in the source the running instruction comes from. Python 3.10 does not record it."""
    positions = getattr(code, "co_positions", None)
    found = next(itertools.islice(positions(), at // 2, None), None) if positions and at >= 0 else None
    return Span(*found) if found and None not in found else None
