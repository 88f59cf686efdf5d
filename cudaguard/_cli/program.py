"""Run a user's program in this process, as `python` itself would have.

The program gets a module of its own, which stays in sys.modules: children made by spawn and forkserver import
`__main__` again by its `__file__` or `__spec__`, and whatever runs at exit still finds its classes there. runpy's
functions would take it down when the program returns.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType, TracebackType
from typing import Any, NamedTuple

from . import UsageError

_kept: list[ModuleType] = []  # the `__main__` that gave way: its code is still running


class Program(NamedTuple):
    """A program that was found: what `__main__` is to be, and how to get its code, which may be a SyntaxError."""

    argv: list[str]
    path: str  # for sys.path[0]
    file: str | None
    spec: ModuleSpec | None
    loader: Any
    load: Callable[[], CodeType | None]


def find(words: list[str]) -> Program:
    """Find what `script.py ...`, `-m module ...` or `-c code ...` names. Raises UsageError, in one line."""
    if not words:
        raise UsageError("no program given: name a script, -m module or -c code")
    if words[0] in ("-m", "-c") and len(words) == 1:
        raise UsageError(f"argument expected after {words[0]}")
    if words[0] == "-m":
        return _module(words[1], words[2:])
    if words[0] == "-c":
        return Program(["-c", *words[2:]], "", None, None, None, lambda: _command(words[1]))
    return _script(words)


def _command(text: str) -> CodeType:
    return compile(kept(text) + "\n", "<string>", "exec", dont_inherit=True)


def kept(text: str) -> str:
    """The code of `-c`, kept for those who show a line of it."""
    import linecache
    import textwrap

    text = textwrap.dedent(text) if sys.version_info >= (3, 14) else text  # as Python's own -c
    # Without a time it is never checked against a file.
    linecache.cache["<string>"] = (len(text), None, text.splitlines(keepends=True), "<string>")
    return text


def title(words: list[str]) -> str:
    """What a reader calls a program: `train.py`, `-m package`, `-c`."""
    if words[:1] == ["-m"]:
        return " ".join(words[:2])
    return os.path.basename(words[0]) if words else ""


def check(words: list[str]) -> None:
    """Raise UsageError where there is no such program. A module is not looked for: that would import the packages it lies in."""
    if words[:1] == ["-c"] and len(words) > 1:
        kept(words[1])
    if words[:1] != ["-m"] or len(words) == 1:
        find(words)


def _script(words: list[str]) -> Program:
    path = os.path.abspath(words[0])
    if not os.path.exists(path):
        raise UsageError(f"cannot open {words[0]!r}: no such file")
    if os.path.isdir(path) or _archive(path):
        return _folder(path, words)
    loader = _loader(path)
    if not os.access(path, os.R_OK):
        raise UsageError(f"cannot open {words[0]!r}: permission denied")
    return Program(words, os.path.dirname(os.path.realpath(path)), path, None, loader, lambda: loader.get_code("__main__"))


def _archive(path: str) -> bool:
    import zipfile

    return zipfile.is_zipfile(path)


def _loader(path: str) -> importlib.machinery.SourceFileLoader | importlib.machinery.SourcelessFileLoader:
    if path.endswith(".pyc"):
        return importlib.machinery.SourcelessFileLoader("__main__", path)
    return Uncached("__main__", path)


class Uncached(importlib.machinery.SourceFileLoader):
    """Loads a script's source; like Python's own, it neither reads nor writes a __pycache__ for it."""

    def get_code(self, fullname: str) -> CodeType | None:
        """Compile the script."""
        return compile(self.get_data(self.path), self.path, "exec", dont_inherit=True)


def _folder(path: str, words: list[str]) -> Program:
    """A folder or an archive with a `__main__.py`."""
    spec = importlib.machinery.PathFinder.find_spec("__main__", [path])
    if spec is None or spec.loader is None:
        raise UsageError(f"cannot find a __main__ module in {words[0]!r}")
    return _from_spec(spec, words, path)


def _module(name: str, arguments: list[str]) -> Program:
    """A module or package on sys.path, which begins in the working folder; its parents are imported."""
    if name.startswith("."):
        raise UsageError(f"cannot run {name!r}: a relative name needs a package")
    sys.argv = ["-m", *arguments]
    _first_on_path(os.getcwd())
    spec = _spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _spec(f"{name}.__main__")
    if spec is None or spec.loader is None or not hasattr(spec.loader, "get_code"):
        raise UsageError(f"no module named {name!r} that can be run")
    return _from_spec(spec, [spec.origin or name, *arguments], os.getcwd())


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            return None
        raise  # the module's own package imports something that is not there
    except ValueError as error:  # a module that is loaded and has no spec
        raise UsageError(f"cannot run module {name!r}: {error}") from error


def _from_spec(spec: ModuleSpec, argv: list[str], path: str) -> Program:
    loader: Any = spec.loader
    return Program(argv, path, spec.origin, spec, loader, lambda: loader.get_code(spec.name))


def execute(words: list[str]) -> None:
    """Run a program as `__main__`. What it raises passes through; its traceback is shown without our frames.

    Raises UsageError, in one line, if there is no such program.
    """
    try:
        _run(find(words))
    except (SystemExit, UsageError):
        raise
    except BaseException:
        # Not shown here: only Python itself ends a program by KeyboardInterrupt rightly, and runs what is to run at exit first.
        sys.excepthook = _Shortened(sys.excepthook)
        raise


def _run(program: Program) -> None:
    sys.argv = program.argv
    _first_on_path(program.path)
    main = _become(program)
    code = program.load()
    if code is None:
        raise ImportError(f"{program.argv[0]} has no code to run")
    exec(code, main.__dict__)


def _first_on_path(path: str) -> None:
    """Replace what Python put in front of sys.path for `-m cudaguard`, if it put anything there."""
    if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
        sys.path[0] = path


def _become(program: Program) -> ModuleType:
    """Make the program's module, as Python sets one up, and put it in our place."""
    main = types.ModuleType("__main__")
    main.__spec__, main.__loader__ = program.spec, program.loader
    main.__package__ = program.spec.parent if program.spec else None
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    if program.file is not None:
        main.__file__ = program.file
        main.__dict__["__cached__"] = program.spec.cached if program.spec else None
    _kept.append(sys.modules["__main__"])
    sys.modules["__main__"] = main
    return main


class _Shortened:
    """The program's excepthook, given tracebacks that begin in the program."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook = hook

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Show an exception."""
        shorter = _own(trace)
        self.hook(kind, error.with_traceback(shorter), shorter)


def _own(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the program's first frame on: past ours, and those of Python's `-m` before them."""
    rest, ours = trace, __file__
    while rest is not None and rest.tb_frame.f_code.co_filename != ours:
        rest = rest.tb_next
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith((ours, "<frozen importlib")):
        rest = rest.tb_next
    return rest
