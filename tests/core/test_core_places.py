"""The user's line: what counts as one, and what ran it."""

from __future__ import annotations

import doctest
import linecache
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cudaguard import _places
from cudaguard._places import Frame, Site
from guarded import Program, environment

CELL = "<ipython-input-5-0123456789ab>"


@dataclass
class Noted:
    """Its `__init__` is code that dataclasses made: its file is called `<string>`."""

    line: Site = field(default_factory=_places.line_here)
    site: Site = field(default_factory=_places.here)


def test_generated_code_is_not_the_user_s_line() -> None:
    """The line that calls it is: by the whole stack, and by the quick look."""
    noted = Noted()
    own = test_generated_code_is_not_the_user_s_line
    assert [(site.file, site.function) for site in (noted.line, noted.site)] == [(__file__, own.__name__)] * 2
    assert noted.line.code == noted.site.code == "noted = Noted()"
    assert "<string>" in {frame.file for frame in noted.site.stack}, "it stays in the stack"


@pytest.fixture
def cell() -> Iterator[str]:
    """A cell of a notebook: a file that does not exist, whose source is kept."""
    text = "from cudaguard import _places\ndef ask():\n    return _places.line_here(), _places.here()\n"
    linecache.cache[CELL] = len(text), None, text.splitlines(keepends=True), CELL
    yield text
    del linecache.cache[CELL]


def test_a_cell_is_the_user_s_though_a_script_runs_it(cell: str) -> None:
    """As IPython.embed() does: its source can be read."""
    space: dict[str, object] = {}
    exec(compile(cell, CELL, "exec"), space)
    ask = space["ask"]
    assert callable(ask)
    assert [(site.file, site.line) for site in ask()] == [(CELL, 3)] * 2


def test_a_doctest_is_the_user_s() -> None:
    """It keeps its source elsewhere, where linecache finds it while it runs."""
    found: list[Site] = []
    text = ">>> found.extend([_places.line_here(), _places.here()])\n"
    doctest.DocTestRunner().run(doctest.DocTestParser().get_doctest(text, {"found": found, "_places": _places}, "mine", None, 0))
    assert [site.file for site in found] == ["<doctest mine[0]>"] * 2


APP, LIB = "/home/me/train.py", "/env/lib/python3.11/site-packages/tool/main.py"
LINES = [
    ((APP, "<string>"), 1),
    ((APP, "<attrs generated init mine.Run>", "<string>"), 1),
    ((APP, "<string>", APP, "<__array_function__ internals>", LIB), 3),
    (("<string>", LIB), 1),
    ((LIB, "<command-3>"), 2),  # a runner of cells, whose sources it keeps to itself
    ((LIB, "<string>", "<attrs generated init mine.Run>"), 3),
]


@pytest.mark.parametrize(("files", "line"), LINES)
def test_generated_code_counts_where_there_is_no_file_of_the_user_s(files: tuple[str, ...], line: int) -> None:
    """Innermost of those, as ever."""
    assert _places.from_frames(tuple(Frame(file, n, "f", 0) for n, file in enumerate(files, 1))).line == line


def test_what_attrs_keeps_in_linecache_is_generated_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a debugger can show it: it is no line that the user wrote."""
    name = "<attrs generated init mine.Kept>"
    monkeypatch.setitem(linecache.cache, name, (1, None, ["def __init__(self):\n"], name))
    assert _places.generated(name)


def test_the_parent_s_file_is_not_around_what_a_child_runs() -> None:
    """What a parent was doing when it forked is no place of the child's."""
    fork = (Frame(APP, 1, "main", 0),)
    assert _places.from_frames((*fork, Frame("<command-3>", 2, "f", 0)), fork).line == 2


HELPER = "def run(work):\n    return work()\n"
WORK = """import torch, helper
def work():
    torch.cuda.init()
helper.run(work)
import cudaguard
print(cudaguard.origin().file, cudaguard.origin().line)
"""


@pytest.mark.parametrize(("flags", "given", "file"), [(["-c", WORK], None, "<string>"), (["-"], WORK, "<stdin>"), ([], WORK, "<stdin>")])
def test_a_program_without_a_file_is_the_user_s(flags: list[str], given: str | None, file: str, tmp_path: Path) -> None:
    """Also where a module of the user's, which has a file, calls back into it."""
    (tmp_path / "helper.py").write_text(HELPER)
    env = environment(CUDAGUARD="error", CUDAGUARD_SIMULATE="1", PYTHONPATH=str(tmp_path))
    done = subprocess.run([sys.executable, *flags], input=given, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == [file, "3"], done.stderr


GENERATED = """
    from dataclasses import dataclass, field
    from functools import partial

    import torch
    from torch.utils.data import DataLoader


    @dataclass
    class Run:
        gpu: int = field(default_factory=torch.cuda.current_device)


    @dataclass
    class Row:
        x: torch.Tensor = field(default_factory=partial(torch.zeros, 2, device="cuda"))


    class Rows:
        def __len__(self):
            return 2

        def __getitem__(self, i):
            return Row().x  # touch


    if __name__ == "__main__":
        Run()  # init
        next(iter(DataLoader(Rows(), num_workers=1, multiprocessing_context="fork", timeout=60)))
"""


@pytest.mark.parametrize("mode", ["error", "reroute"])
def test_a_dataclass_that_uses_the_gpu(program: Program, mode: str) -> None:
    """The origin and the touch are the lines that make one."""
    run = program(GENERATED, mode=mode)
    finding = run.report[0]
    named = [(finding[part]["file"], finding[part]["line"]) for part in ("origin", "touch")]
    assert named == [(str(run.script), run.line("# init")), (str(run.script), run.line("# touch"))]
