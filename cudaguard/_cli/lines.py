"""Which line of which module it was: the innermost line on a stack that is neither torch's nor Python's, and how sure that is."""

from __future__ import annotations

import functools
import importlib.util
import linecache
import os
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from typing import Any, NamedTuple

from .. import _calls, _places
from .._hooks import imports

CELLS = "/IPython/core/interactiveshell.py"


class Line(NamedTuple):
    """A line of a program or library. Where it is not `exact`, `candidates` are the lines of the module's body that it may be, if they are known."""

    file: str | None
    line: int | None
    function: str
    code: str
    module: str  # "" for what is no library's
    package: str
    exact: bool
    candidates: list[int]


def innermost(stack: list[dict[str, Any]], call: str) -> Line | None:
    """The line that made a call, given the stack that a hook saw."""
    frames = below(stack)
    own = [i for i, frame in enumerate(frames) if matters(frame["file"])]
    if not own:
        return None
    line = _line(next(filter(_of_torchs_body, reversed(frames[own[-1] :])), frames[own[-1]]))
    imported = call.removeprefix("import ") if call.startswith("import ") else ""
    if not imported:
        return line
    if imported == line.module:  # its body did it, and one line alone can be meant
        return line._replace(exact=False, candidates=[line.line] if line.line else [])
    return _body(imported, line)


def _of_torchs_body(frame: dict[str, Any]) -> bool:
    """Whether a frame is the body of a module of torch's that is being imported: `import torch.utils.cpp_extension` asks for CUDA."""
    return bool(frame["function"] == "<module>" and frame["file"].startswith(_torch()))


def called(line: Line | None) -> str:
    """What a library's line calls, as far as its source tells."""
    if line is None or not (line.module and line.file and line.line):
        return ""
    return _calls.at(_places.Site(line.file, line.line, line.function))


def _line(frame: dict[str, Any]) -> Line:
    file, number = frame["file"], frame["line"]
    module = module_of(file)
    return Line(file, number, frame["function"], linecache.getline(file, number).strip(), module, module.partition(".")[0], True, [])


def _body(name: str, importer: Line) -> Line:
    """Some line of a module's body; C code that runs when it is loaded is the deed of the line that imports it."""
    spec = _spec(name)
    if spec is not None and isinstance(spec.loader, ExtensionFileLoader):
        return importer
    file = spec.origin if spec is not None and spec.has_location else None
    return Line(file, None, "<module>", "", name, name.partition(".")[0], False, imports.suspects(file) if file else [])


def _spec(name: str) -> ModuleSpec | None:
    """Where a module is, found without importing the packages that it lies in."""
    spec, folders = None, None
    for count in range(1, name.count(".") + 2):
        spec = PathFinder.find_spec(".".join(name.split(".")[:count]), folders)
        folders = spec.submodule_search_locations if spec is not None else None
        if spec is None:
            return None
    return spec


def module_of(file: str) -> str:
    """The dotted name of a library's module; "" for a file of the user's."""
    if _places.kind(file) not in (_places.LIBRARY, _places.TORCH):
        return ""
    start = max((file.rfind(part) + len(part) for part in (*_places.PACKAGES, *_places._installed()) if part in file), default=0)
    return os.path.splitext(file[start:])[0].removesuffix(f"{os.sep}__init__").replace(os.sep, ".") if start else ""


def below(stack: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a notebook's cell called, without what runs cells."""
    last = max((i for i, frame in enumerate(stack) if frame["file"].replace(os.sep, "/").endswith(CELLS)), default=-1)
    return stack[last + 1 :]


def matters(file: str) -> bool:
    """Whether a frame is the user's or a library's: neither torch's, nor Python's, nor ours."""
    return _places.kind(file) in (_places.USER, _places.LIBRARY) and not file.startswith(_torch())


@functools.cache
def _torch() -> str:
    """torch's folder; found, not imported."""
    spec = importlib.util.find_spec("torch") if "torch" not in sys.modules else sys.modules["torch"].__spec__
    return os.path.dirname(spec.origin) + os.sep if spec and spec.origin else os.sep * 2
