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
from collections.abc import Callable
from typing import Any

from .. import _calls, _driver, _journal, _places, _respond, _trace, _verdict
from .._journal import DRIVER, Journal, Step
from .._places import USER, Frame, Site
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
        return None
    here = _notice.site()
    up = line._replace(stack=here.stack)
    return _noted(book.stepped(DRIVER, "", here, (book.down or up, up)))


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
        return None
    extension = type(loader).__name__ == "ExtensionFileLoader"
    return _noted(_extension_step(book, module) if extension else _body_step(book, began, module), note=True)


def _extension_step(book: Journal, module: Any) -> Step:
    """C code that runs when it is loaded: the line that imports it is the exact one."""
    return book.stepped(DRIVER, f"import {module.__name__}", _notice.site(), None)


def _body_step(book: Journal, began: Site | None, module: Any) -> Step:
    """A line of this module's body, after the last import in it that left CUDA down; a library's module is the line that imports it."""
    file = str(module.__file__)
    if _places.kind(file) != USER:
        return book.stepped(DRIVER, f"import {module.__name__}", _places.from_frames(_places.waiting(), book.cut()), None)
    down = book.down if book.down is not None and book.down is not began else Site(file, 1, "<module>")
    end = len(linecache.getlines(file)) or 1
    suspects = _suspects(file, down.line if down.file == file else 1)
    line = suspects[0] if len(suspects) == 1 else end
    site = _places.from_frames((*_places.waiting(), Frame(file, line, "<module>", 0)), book.cut())
    return book.stepped(DRIVER, _calls.name(site) if line != end else "", site, (down, Site(file, end, "<module>", site.stack)))


def _suspects(file: str, first: int) -> list[int]:
    """The lines of a module's body, from one on, that call something: definitions and assignments of constants wake nothing."""
    try:
        body = ast.parse("".join(linecache.getlines(file))).body
    except SyntaxError:  # no source to read
        return []
    harmless = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    rest = [node for node in body if node.lineno >= first and not isinstance(node, harmless)]
    return [node.lineno for node in rest if any(isinstance(part, ast.Call) for part in ast.walk(node))]


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
