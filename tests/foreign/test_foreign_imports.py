"""Imports that wake the driver: the innermost module, and the line or the lines between which it happened."""

from __future__ import annotations

from pathlib import Path

import pytest
import standins

from guarded import Program


@pytest.fixture(autouse=True)
def _libraries(tmp_path: Path) -> None:
    standins.write(tmp_path)


def test_the_module_s_own_line_is_found(program: Program) -> None:
    """Where one line of a body can be meant it is named, with the chain of imports that led there, and a note is written."""
    run = program("import json, torch, cudaguard, pretended\nimport nested  # here\nprint(json.dumps(cudaguard.report().findings))\n", simulate=None)
    (finding,) = run.json()
    origin = finding["origin"]
    assert (finding["slug"], Path(origin["file"]).name, origin["line"], origin["call"]) == ("import-initialises", "deep.py", 4, "pretended.wake")
    assert [(Path(site["file"]).name, site["line"]) for site in origin["between"]] == [("deep.py", 2), ("deep.py", 7)]
    chain = [(Path(frame["file"]).name, frame["line"]) for frame in origin["stack"]]
    assert chain == [("program.py", run.line("# here")), ("__init__.py", 2), ("deep.py", 4)]


def test_the_lines_between_two_imports_are_found(program: Program) -> None:
    """Where several lines can be meant, the imports before and after them bracket it."""
    run = program("import json, torch, cudaguard, pretended\nimport several\nprint(json.dumps(cudaguard.origin()))\n", simulate=None)
    origin = run.json()
    assert [(Path(file).name, line) for file, line in origin[4]] == [("several.py", 2), ("several.py", 6)]


def test_an_import_that_fails_after_waking_the_driver_is_found(program: Program) -> None:
    """The ImportError passes as it is, with a traceback that ends in the module, and the module is the origin."""
    source = """
        import torch, traceback, cudaguard, pretended
        try:
            import failing
        except ImportError as error:
            print(error, "|", cudaguard.origin().file, "|", [frame.name for frame in traceback.extract_tb(error.__traceback__)])
    """
    said, file, frames = program(source, simulate=None).ok().out.split("|")
    assert (said.strip(), Path(file.strip()).name, frames.strip()) == ("no such device", "failing.py", "['<module>', '<module>']")


def test_nothing_of_it_is_seen_by_programs(program: Program, tmp_path: Path) -> None:
    """Specs, loaders, tracebacks, reload, lazy modules and pickled loaders are as without the guard.

    `importlib.import_module` shows importlib's frames in its tracebacks, and one of ours among them that says it is one: left out here.
    """
    source = """
        import importlib, importlib.util, pickle, sys, traceback
        GUARD
        import torch
        import plain_one
        def lazy(name):
            spec = importlib.util.find_spec(name)
            spec.loader = importlib.util.LazyLoader(spec.loader)
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
            return module
        plain_two = lazy("plain_two")
        print(type(plain_one.__loader__), plain_one.__spec__.loader is plain_one.__loader__, vars(plain_one.__loader__), plain_one.__spec__.origin)
        print(importlib.reload(plain_one) is plain_one, pickle.loads(pickle.dumps(plain_one.__loader__)) == plain_one.__loader__)
        print(type(plain_two).__name__, plain_two.__name__, type(plain_two.__loader__))
        for name in ("no_such_module", "broken"):
            try:
                importlib.import_module(name)
            except Exception as error:
                frames = traceback.extract_tb(error.__traceback__)
                print([(frame.name, frame.lineno) for frame in frames if "<frozen importlib" not in frame.filename], error)
        try:
            import broken
        except ZeroDivisionError as error:
            print([(frame.name, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)])
    """
    (tmp_path / "broken.py").write_text("import plain_one\n1 / 0\n")
    with_guard = program(source.replace("GUARD", "import cudaguard"), mode=None, simulate=None, report=None).ok().out
    without = program(source.replace("GUARD", "pass"), mode=None, simulate=None, report=None).ok().out
    assert with_guard == without


def test_disable_gives_importlib_its_own_back(program: Program) -> None:
    """After `disable()` importlib's loaders are untouched."""
    source = """
        import importlib.machinery as machinery
        before = machinery.SourceFileLoader.exec_module, machinery.ExtensionFileLoader.exec_module
        import cudaguard, torch
        during = machinery.SourceFileLoader.exec_module
        cudaguard.disable()
        print(during is before[0], (machinery.SourceFileLoader.exec_module, machinery.ExtensionFileLoader.exec_module) == before)
    """
    assert program(source, mode=None, simulate=None).ok().out.split() == ["False", "True"]
