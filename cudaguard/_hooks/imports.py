"""Ask the driver when a module's body begins and when it ends, so that the one that wakes it is known, and between which lines.

importlib's own loaders are told, once for all modules: a finder could see beginnings only, and a loader of our own would be seen as
`__loader__`, and would have to answer, pickle and compare as the real one does. Once somebody has woken the driver nothing is asked any more.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from .. import _calls, _driver, _journal, _places, _respond, _source, _trace, _verdict
from .._journal import DRIVER, Journal, Step
from .._places import GUARD, USER, Frame, Site
from .._respond import safe
from ..errors import CudaInitError
from . import _notice, _refuse
from ._patch import Patches

# Whose exec_module runs all modules that are files: Python's (also from a zip), C's, and pytest's tests and conftest files.
LOADERS = (
    ("_frozen_importlib_external", "_LoaderBasics"),
    ("_frozen_importlib_external", "ExtensionFileLoader"),
    ("_pytest.assertion.rewrite", "AssertionRewritingHook"),
)

# `trace --deep` knows a line better than the imports before and after it: it is asked to tell first.
asked_first: list[Callable[[], None]] = []

_reached: tuple[str, int] | None = None  # the last line of a module's body that imported, and left CUDA down: the user's or a library's


def _watching(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    @functools.wraps(original)
    def exec_module(self: Any, module: Any) -> None:
        refusal = _begin()
        if refusal is not None:
            raise refusal
        began = _journal.current.down
        try:
            original(self, module)
        except BaseException:
            _ended(self, began, module)
            raise
        refusal = _ended(self, began, module)
        if refusal is not None:
            raise refusal

    # Python leaves importlib's frames out of the tracebacks of imports, down to this name: ours stands between them.
    exec_module.__code__ = exec_module.__code__.replace(  # type: ignore[attr-defined]
        co_filename="<frozen importlib._bootstrap>", co_name="_call_with_frames_removed"
    )
    return exec_module


def _settled(book: Journal) -> bool:
    """Whether there is nothing to look for: CUDA is up, useless here, or a watched call is running and will tell itself."""
    return bool(book.steps or book.late or _notice.busy() or (book.forks and book.bad_fork()))


@safe(None)
def _begin() -> CudaInitError | None:
    book = _journal.current
    if _settled(book):
        return None
    line = _line()
    if not _driver.up():
        book.down = line
        _reach(sys._getframe(3))
        return None
    if _told(book):
        return None
    here = _notice.site()
    up = line._replace(stack=here.stack)
    return _noted(book.stepped(DRIVER, "", here, (book.down or up, up)))


def _told(book: Journal) -> bool:
    """Whether somebody who knows better told of it."""
    for tell in asked_first:
        tell()
    return bool(book.steps)


def _reach(frame: FrameType | None) -> None:
    """Note the line that the innermost module's body is at: an import further in, in a function, may stand above the line that called it."""
    global _reached
    while frame is not None and (frame.f_code.co_name != "<module>" or _places.kind(frame.f_code.co_filename) == GUARD):
        frame = frame.f_back
    if frame is not None:
        _reached = frame.f_code.co_filename, frame.f_lineno


def _line() -> Site:
    """The user's line that imports."""
    return _places.line_of(sys._getframe(4))  # past this function, its caller, the guard around that, and exec_module


@safe(None)
def _ended(loader: Any, began: Site | None, module: Any) -> CudaInitError | None:
    book = _journal.current
    if _settled(book):
        return None
    if not _driver.up():
        book.down = began  # the importing line again
        _reach(sys._getframe(3))
        return None
    if _told(book):
        return None
    extension = type(loader).__name__ == "ExtensionFileLoader"
    return _noted(_extension_step(book, module) if extension else _body_step(book, began, module), note=True)


def _extension_step(book: Journal, module: Any) -> Step:
    """C code that runs when it is loaded: the line that imports it is the exact one."""
    said = f"import {module.__name__}"
    return book.stepped(DRIVER, said, _notice.site(), None, said)


def _body_step(book: Journal, began: Site | None, module: Any) -> Step:
    """A line of this module's body, after the last import in it that left CUDA down."""
    file = str(module.__file__)
    if _places.kind(file) != USER:
        return _library_step(book, module.__name__, file)
    down = book.down if book.down is not None and book.down is not began else Site(file, 1, "<module>")
    end = len(linecache.getlines(file)) or 1
    lines = suspects(file, down.line if down.file == file else 1)
    line = lines[0] if len(lines) == 1 else end
    site = _places.from_frames((*_places.waiting(), Frame(file, line, "<module>", 0)), book.cut())
    return book.stepped(DRIVER, _calls.name(site) if line != end else "", site, (down, Site(file, end, "<module>", site.stack)))


def _library_step(book: Journal, name: str, file: str) -> Step:
    """A library's module: for the user it is the line that imports it. Where one line of its body can be meant, the chain ends there."""
    lines = suspects(file, _reached[1] if _reached is not None and _reached[0] == file else 1)
    inner = (Frame(file, lines[0], "<module>", 0),) if len(lines) == 1 else ()
    return book.stepped(DRIVER, f"import {name}", _places.from_frames((*_places.waiting(), *inner), book.cut()), None, f"import {name}")


HARMLESS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
PARTS = (ast.stmt, ast.ExceptHandler, ast.match_case)  # what statements hold, that is no expression


def suspects(file: str, first: int = 1) -> list[int]:
    """The lines of a module's body, from one on, that call something: definitions and assignments of constants wake nothing."""
    tree = _source.tree("".join(linecache.getlines(file)))
    return sorted({line for node in (tree.body if tree else ()) for line in _calling(node) if line >= first})


def _calling(node: ast.AST) -> Iterator[int]:
    """The lines of the statements that call something: this one, and those it holds."""
    if isinstance(node, HARMLESS):
        return
    inner = [part for part in ast.iter_child_nodes(node) if isinstance(part, PARTS)]
    own = [part for part in ast.iter_child_nodes(node) if not isinstance(part, PARTS)]
    if any(isinstance(call, ast.Call) for part in own for call in ast.walk(part)):
        yield getattr(node, "lineno", 0)
    for part in inner:
        yield from _calling(part)


def _noted(step: Step, note: bool = False) -> CudaInitError | None:
    """Tell of a step: in the trace, as a note where an import did it, as an error where that is forbidden."""
    _trace.stepped(step)
    if note:
        touch = _verdict.Touch(os.getpid(), step.call, step.site)
        _respond.respond(_verdict.note("import-initialises", _journal.current, touch, _respond.facts()))
    return _refuse.seen(step)


_made = Patches()  # not with the others: these go in before torch is there


def install() -> None:
    """Watch imports from now on."""
    if not _made.names():
        for module, name in LOADERS:
            kind: Any = getattr(sys.modules.get(module), name, None)
            if kind is not None and hasattr(kind, "exec_module"):
                _made.put(kind, "exec_module", _watching(kind.exec_module))


def uninstall() -> None:
    """Stop watching imports."""
    _made.restore()
