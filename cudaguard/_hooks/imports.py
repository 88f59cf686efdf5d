"""Ask the driver when an import begins and when it ends, so that the module whose body wakes it is known, and between which lines.

A finder that stands first in sys.meta_path and hands on what the others find. Where that is an ordinary file, its loader's exec_module is
replaced on that one object until it runs: a loader of our own would be seen as `__loader__`, and would have to answer, pickle and compare as
the real one does. Once somebody has woken the driver, nothing is looked at any more.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import sys
from typing import Any

from .. import _calls, _driver, _journal, _places, _respond, _trace, _verdict
from .._journal import DRIVER, Journal, Step
from .._places import GUARD, STANDARD, Frame, Site
from .._respond import safe
from ..errors import CudaInitError
from . import _notice, _refuse

# importlib's own loaders, one object for each module. Other finders share one, or are classes.
LOADERS = frozenset({"SourceFileLoader", "SourcelessFileLoader", "ExtensionFileLoader"})
IMPORTLIB = "_frozen_importlib_external"
LOADING = "_find_and_load_unlocked"  # asks for a module that will be loaded; importlib.util.find_spec asks for the spec alone


class ImportProbe:
    """Looks at the driver around imports. Plain class: importing importlib.abc would cost 20 ms."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Note whether CUDA is still down; give back what the other finders find, or None."""
        refusal = _begin()
        if refusal is not None:
            raise refusal
        if _settled() or not _loading(sys._getframe(1)):
            return None
        spec = self._ask(name, path, target)
        if spec is not None:
            _watch(spec.loader)
        return spec

    def _ask(self, name: str, path: Any, target: Any) -> Any:
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 :] if self in finders else ():
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None


def _loading(frame: Any) -> bool:
    return frame.f_back is not None and frame.f_back.f_code.co_name == LOADING


def _settled() -> bool:
    """Whether there is nothing to look for: CUDA is up, useless here, or a watched call is running and will tell itself."""
    book = _journal.current
    return bool(book.steps) or book.late is not None or _notice.busy() or book.bad_fork() is not None


@safe(None)
def _begin() -> CudaInitError | None:
    if _settled():
        return None
    book = _notice.journal()
    if not _driver.up():
        book.down = _line()
        return None
    here = _notice.site()
    line = _line()
    up = line._replace(stack=here.stack)
    return _noted(book.stepped(DRIVER, "", here, (book.down or up, up)))


def _line() -> Site:
    """The line that imports, whoever's it is."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _places.kind(frame.f_code.co_filename) in (STANDARD, GUARD):
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


@safe(None)
def _watch(loader: Any) -> None:
    """Look again when this module's body has run. wrapt's loader, where it has a hook on the module, has the real one inside."""
    inner = getattr(loader, "__wrapped__", None) or getattr(loader, "loader", None) or loader
    kind = type(inner)
    if kind.__module__ == IMPORTLIB and kind.__name__ in LOADERS:
        inner.exec_module = functools.partial(_run, inner, inner.exec_module, _journal.current.down)


def _run(loader: Any, original: Any, began: Site | None, module: Any) -> None:
    vars(loader).pop("exec_module", None)  # before the body runs, and can see it
    try:
        original(module)
    except BaseException:
        _ended(loader, began, module)
        raise
    refusal = _ended(loader, began, module)
    if refusal is not None:
        raise refusal


# Python leaves importlib's frames out of the tracebacks of imports, down to this name: ours stands between them.
_run.__code__ = _run.__code__.replace(co_filename="<frozen importlib._bootstrap>", co_name="_call_with_frames_removed")


@safe(None)
def _ended(loader: Any, began: Site | None, module: Any) -> CudaInitError | None:
    if _settled():
        return None
    book = _notice.journal()
    if not _driver.up():
        book.down = _line()
        return None
    extension = type(loader).__name__ == "ExtensionFileLoader"
    return _noted(_extension_step(book, module) if extension else _body_step(book, began, module), note=True)


def _extension_step(book: Journal, module: Any) -> Step:
    """C code that runs when it is loaded: the line that imports it is the exact one."""
    return book.stepped(DRIVER, f"import {module.__name__}", _notice.site(), None)


def _body_step(book: Journal, began: Site | None, module: Any) -> Step:
    """A line of this module's body, after the last import in it that left CUDA down."""
    file = str(module.__file__)
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


_probe = ImportProbe()


def install() -> None:
    """Watch imports from now on."""
    if _probe not in sys.meta_path:
        sys.meta_path.insert(0, _probe)


def uninstall() -> None:
    """Stop watching imports."""
    if _probe in sys.meta_path:
        sys.meta_path.remove(_probe)
