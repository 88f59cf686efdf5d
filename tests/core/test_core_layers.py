"""The rooms import one way, and the judging ones touch nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from guarded import ROOT, Program

PACKAGE = ROOT / "cudaguard"

# From what everybody may import to what nobody does. A room imports at its import time only from its own row and from rows above.
ROWS = (
    {"errors", "_config", "_places", "_driver", "_pages", "_source"},
    {"_makers", "_calls", "_culprit", "_rewrite"},
    {"_journal"},
    {"_provenance"},
    {"_advice"},
    {"_verdict"},
    {"_text", "_trace"},
    {"_respond"},
    {"_findings"},
    {"_hooks", "_worker"},
    {"_public"},
    {"_activate"},
)
PURE = {
    "_advice": {"__future__", "os", "re", "collections.abc", "typing"},
    "_makers": {"__future__"},
    "_provenance": {"__future__", "ast", "collections", "collections.abc", "functools", "typing"},
    "_rewrite": {"__future__", "ast", "collections.abc", "typing"},
    "_verdict": {"__future__", "typing"},
}
# Not on the line: the front doors, and what pretends or moves.
BESIDE = {"_deep", "_notebook", "__init__", "__main__", "_forbid", "_cli", "_site", "_simulate", "_shadow", "_reroute", "collate"}
ARMS = {"_activate"}  # changes what is in force, so nothing on the line may lean on it, even late


def _room(module: str) -> str:
    return module.split(".")[0]


def _row(room: str) -> int | None:
    return next((n for n, row in enumerate(ROWS) if room in row), None)


def _imports(path: Path, late: bool) -> Iterator[str]:
    """The package's modules that a file imports: at its import time, or (late) anywhere at all."""
    package = ("cudaguard", *path.relative_to(PACKAGE).parent.parts)
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if late else _at_import(tree.body):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*package[: len(package) - node.level + 1], *(node.module.split(".") if node.module else ())][1:]
            yield from [".".join(base)] if base else [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cudaguard."):
            yield (node.module or "").removeprefix("cudaguard.")
        elif isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("cudaguard.") for alias in node.names if alias.name.startswith("cudaguard."))


def _at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.If):
            if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
                yield from _at_import(node.body + node.orelse)
        elif isinstance(node, ast.Try):
            yield from _at_import(node.body + node.orelse + node.finalbody)
        elif isinstance(node, ast.ClassDef):
            yield from _at_import(node.body)
        else:
            yield node


def _outside(path: Path) -> Iterator[str]:
    """The modules of others that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""


def _files(*rooms: str) -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if _room(".".join(path.relative_to(PACKAGE).with_suffix("").parts)) in rooms]


LINE = [path for row in ROWS for room in sorted(row) for path in _files(room)]


@pytest.mark.parametrize("path", LINE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path) -> None:
    """A room imports only rooms before it on the line, so that each can be read without those after it."""
    room = _room(".".join(path.relative_to(PACKAGE).with_suffix("").parts))
    mine = _row(room)
    for imported in _imports(path, late=False):
        theirs = _row(_room(imported))
        if theirs is not None and mine is not None and _room(imported) != room:
            assert theirs <= mine, f"{room} imports {imported}, which comes after it"


def test_the_line_test_reads_every_room_of_the_core() -> None:
    """A new module of the core must take its place on the line."""
    known = set().union(*ROWS) | BESIDE
    found = {_room(".".join(path.relative_to(PACKAGE).with_suffix("").parts)) for path in PACKAGE.rglob("*.py")}
    assert found <= known, f"no place on the line for {found - known}"
    assert len(LINE) >= 15


def test_only_the_child_s_arrival_leans_on_activation() -> None:
    """Nothing between hooks and report turns the guard on; a spawned child's passenger does, late."""
    leaning = {
        str(path.relative_to(PACKAGE)) for path in LINE if _room(path.stem) not in ARMS for name in _imports(path, late=True) if _room(name) in ARMS
    }
    assert leaning <= {"_hooks/children.py"}


@pytest.mark.parametrize("room", sorted(PURE))
def test_what_judges_is_pure(room: str) -> None:
    """The judging rooms import no torch, no processes and no files, and call nothing that opens one."""
    path = PACKAGE / f"{room}.py"
    tree = ast.parse(path.read_text())
    assert set(_outside(path)) <= PURE[room]
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"open", "print", "input", "exec", "eval", "__import__"}
    of_os = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"}
    assert of_os <= {"path", "sep"}


def test_no_room_outside_the_hooks_imports_torch() -> None:
    """Only hooks, the worker's target and what pretends a device know torch."""
    for path in LINE:
        if _room(".".join(path.relative_to(PACKAGE).parts)) in {"_hooks", "_worker.py"}:
            continue
        assert not [name for name in _outside(path) if name.split(".")[0] == "torch"], path


def test_importing_the_guard_is_light(program: Program) -> None:
    """`import cudaguard` loads neither torch nor wrapt nor dataclasses, in whatever mode."""
    source = """
        import sys
        before = set(sys.modules)
        import cudaguard
        heavy = {"torch", "wrapt", "dataclasses", "inspect", "importlib.abc", "traceback", "multiprocessing", "ctypes", "numpy", "json"} - before
        print(sorted(heavy & set(sys.modules)))
    """
    for mode in (None, "off", "record", "error"):
        assert program(source, mode=mode, simulate=None).ok().out.strip() == "[]", mode


def test_importing_the_guard_before_torch_wakes_nothing(program: Program) -> None:
    """The guard waits for a CUDA library: without one it hooks nothing."""
    source = """
        import sys
        before = list(sys.meta_path)
        import cudaguard
        print("cudaguard._hooks" in sys.modules, len(sys.meta_path) - len(before))
    """
    assert program(source, mode=None, simulate=None).ok().out.split() == ["False", "1"]
