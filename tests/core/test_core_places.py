"""The user's line: what counts as one, and what ran it."""

from __future__ import annotations

import doctest
import inspect
import json
import linecache
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from cudaguard import _calls, _places, _respond
from cudaguard._hooks import imports
from cudaguard._journal import DRIVER, Journal, Step
from cudaguard._places import Frame, Site, Span
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


@pytest.mark.parametrize(("flags", "given", "file"), [(["-c", WORK], None, "<string>"), ([], WORK, "<stdin>")])
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


# A library's modules, and lines that do or do not import one whose body uses CUDA: who is to blame, and what the origin's call is.
LIBRARY = {
    "kernels/__init__.py": "",
    "kernels/ops.py": "import torch\nbig = torch.cuda.get_device_properties(0).total_memory  # body\nsmall = 1\n",
    "kernels/load.py": "import importlib\ndef engine():\n    return importlib.import_module('kernels.ops')\n",
    "kernels/lazy.py": "from kernels import load\ndef __getattr__(name):\n    return getattr(load.engine() if name == 'big' else load, name)\n",
}
IMPORTS = {
    "import kernels.ops  # line": True,
    "from kernels.ops import (  # line\n    big,\n    small,\n)": True,
    "import importlib; ops = importlib.import_module('kernels.ops')  # line": True,
    "ops = [\n    __import__(name)  # line\n    for name in ['kernels.ops']\n]": True,
    "if torch.ones(1)[0] == 1: import kernels.ops  # line": True,
    "from kernels.lazy import big  # line": True,
    "from kernels import load\nload.engine()  # line": False,
    "from kernels import lazy\nlazy.big  # line": False,
    "import torch; torch.cuda.init()  # line": False,
    "exec('import torch; torch.cuda.init()')  # line": False,
}
SHOW = """
import json
from pathlib import Path
from cudaguard import _journal
step, = _journal.current.steps
site = step.site
names = [(Path(frame.file).name, frame.line) if frame else None for frame in (site.importing, site.importer)]
print(json.dumps([Path(site.file).name, site.line, step.imported, *names, step.call]))
"""


def _library(folder: Path) -> dict[str, str | None]:
    """Write the library where packages are installed. The environment that finds it."""
    home = folder / "lib" / "site-packages"
    for name, text in LIBRARY.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    return {"PYTHONPATH": str(home)}


EACH = """
import os, torch
for name in {names}:
    if os.fork() == 0:
        exec(compile(open(name).read(), name, "exec"))
        os._exit(0)
    os.wait()
"""


def test_whether_an_import_did_it_is_seen_on_the_stack(program: Program, tmp_path: Path) -> None:
    """However the line is written: the body of a module ran that the line itself imports. A child for each line saves the time to load torch."""
    names = [f"line{n}.py" for n in range(len(IMPORTS))]
    for name, line in zip(names, IMPORTS, strict=True):
        (tmp_path / name).write_text(f"{line}\n{SHOW}")
    run = program(EACH.format(names=names), env=_library(tmp_path)).ok()
    for name, line, said in zip(names, IMPORTS, run.out.splitlines(), strict=True):
        at = next(n for n, text in enumerate(line.splitlines(), 1) if "# line" in text)
        call = "torch.cuda.get_device_properties" if "cuda.init" not in line else "torch.cuda.init"
        imported = [True, ["ops.py", 2]] if IMPORTS[line] else [False, None]
        file, number, *rest, _, named = json.loads(said)
        assert [file, number, rest, named] == [name, at, imported, call], line
    assert run.slugs() == ["import-initialises"] * sum(IMPORTS.values())


@pytest.mark.parametrize(
    "way", ["from settings import device", "import importlib; importlib.import_module('settings')", "def f():\n    import settings\nf()"]
)
def test_the_line_that_imports_the_user_s_own_module(way: str, program: Program, tmp_path: Path) -> None:
    """The user's line is in the module; its importer is the line that had the module run."""
    (tmp_path / "settings.py").write_text("import torch\n\ndevice = 'cuda' if torch.cuda.is_available() else 'cpu'\n")
    run = program(f"import torch\n{way}\n{SHOW}")
    at = next(n for n, text in enumerate(run.script.read_text().splitlines(), 1) if "settings" in text)
    assert run.json() == ["settings.py", 3, False, None, [run.script.name, at], "torch.cuda.is_available"]


def test_a_module_s_function_is_not_its_body(program: Program, tmp_path: Path) -> None:
    """A program that is all inside an import would be told to import itself later."""
    (tmp_path / "app.py").write_text("import torch\ndef main():\n    torch.cuda.init()\nmain()\n")
    assert program(f"import app\n{SHOW}").json() == ["app.py", 3, False, None, None, "torch.cuda.init"]


@pytest.mark.parametrize("words", [["cudaguard", "run"], ["-m", "runpy"], ["-m", "pytest", "-q", "-s", "-p", "no:cacheprovider"]])
def test_what_runs_a_script_does_not_import_it(words: list[str], tmp_path: Path) -> None:
    """Nor do Python's -m, the guard's own command or a library, such as pytest."""
    (tmp_path / "test_it.py").write_text(f"import torch\ntorch.cuda.init()\n{SHOW}\ndef test(): pass\n")
    words = [str(Path(sys.executable).with_name("cudaguard")), *words[1:]] if words[0] == "cudaguard" else words
    script = "test_it" if words == ["-m", "runpy"] else "test_it.py"
    env = environment(CUDAGUARD="error", CUDAGUARD_SIMULATE="1", PYTHONPATH=str(tmp_path))
    done = subprocess.run([sys.executable, *words, script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert '["test_it.py", 2, false, null, null, "torch.cuda.init"]' in done.stdout, done.stderr


def test_c_code_that_runs_when_it_is_loaded_is_an_import() -> None:
    """It leaves no body on the stack: the hook on imports says so."""
    user, tool = Frame(APP, 3, "<module>", 0), Frame(LIB, 9, "load", 0)
    direct, called = Site(APP, 3, "<module>", (user,)), Site(APP, 3, "<module>", (user, tool))
    assert [_step(site, cause).imported for site in (direct, called) for cause in ("import ext", "")] == [True, False, False, False]


def _step(site: Site, cause: str) -> Step:
    return Step(1, DRIVER, "import ext", site, None, 0.0, cause)


def test_the_hook_on_imports_tells_of_modules_whose_body_is_not_on_the_stack() -> None:
    """It looks when they are loaded; the line that waits for them is this one."""
    steps = imports._extension_step(Journal(), types.ModuleType("ext")), imports._library_step(Journal(), "kern", "/no/such/file.py")
    assert [(step.cause, step.imported, step.site.importing) for step in steps] == [("import ext", True, None), ("import kern", True, None)]


def test_a_loader_of_another_s_between_is_no_matter() -> None:
    """wrapt and pytest run the bodies of some modules themselves."""
    stack = (Frame(APP, 3, "f", 0), Frame(LIB, 7, "exec_module", 0), Frame(LIB.replace("main", "body"), 1, "<module>", 0))
    assert Site(APP, 3, "f", stack).importing == stack[2]


QUERIES = {
    "has_gpu()": "torch.cuda.is_available",
    "[check() for name, check in {'gpu': has_gpu}.items()]": "torch.cuda.is_available",
    "seedkit.seed_everything(1)": "torch.cuda.is_available",
    "torch.cuda.get_arch_list()": "torch.cuda.get_arch_list",
    "torch.amp.GradScaler('cuda')": "torch.amp.GradScaler",
}
ASKED = """
import os, torch, seedkit
has_gpu = torch.cuda.is_available
from cudaguard import _journal
for name in {names}:
    if os.fork() == 0:
        exec(compile(open(name).read(), name, "exec"))
        step, = _journal.current.steps
        print(step.call, step.cause, step.tier, flush=True)
        os._exit(0)
    os.wait()
"""


def test_a_query_is_called_by_its_own_name(program: Program, tmp_path: Path) -> None:
    """Where the source has another for it, as with a library's function; torch's own names stay. The cause is always the function asked."""
    env = _library(tmp_path)
    (tmp_path / "lib" / "site-packages" / "seedkit.py").write_text("import torch\ndef seed_everything(n):\n    torch.cuda.is_available()\n")
    queries = {line: call for line, call in QUERIES.items() if hasattr(torch.amp, "GradScaler") or "GradScaler" not in line}
    names = [f"line{n}.py" for n in range(len(queries))]
    for name, line in zip(names, queries, strict=True):
        (tmp_path / name).write_text(line)
    run = program(ASKED.format(names=names), env=env).ok()
    asks_by_itself = "is_available" not in inspect.getsource(torch.cuda.get_arch_list)  # in a later torch than 2.7
    causes = [call if asks_by_itself and "arch_list" in call else "torch.cuda.is_available" for call in queries.values()]
    assert run.out.splitlines() == [f"{call} {cause} queried" for call, cause in zip(queries.values(), causes, strict=True)]


def test_a_query_under_c_has_a_name(tmp_path: Path) -> None:
    """There is no source to read it from. The report shows the call, and no more of a step than it did."""
    code = "import torch, json, cudaguard\nfrom cudaguard import _journal, _verdict\ntorch.cuda.is_available()\nstep, = _journal.current.steps"
    shown = "print(step.call, cudaguard.origin().call, step.cause, *sorted(_verdict._origin(step)), pickle.loads(pickle.dumps(step)) == step)"
    env = environment(CUDAGUARD="error", CUDAGUARD_SIMULATE="1")
    done = subprocess.run(
        [sys.executable, "-c", f"import pickle\n{code}\n{shown}"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["torch.cuda.is_available"] * 3 + ["call", "cell", "code", "file", "function", "line", "stack", "True"], done.stderr


PIECES = {
    "x.unsqueeze(0)\n            .repeat(2, 1)\n            .to(device)": "torch.Tensor.to",
    "torch.tensor(\n    [1.0],\n    device=0,\n)": "torch.tensor",
    "x.add(1)  # first\n .cuda()  # then": "torch.Tensor.cuda",
    "batch\n        .images.pin_memory()": "torch.Tensor.pin_memory",
}


@pytest.mark.parametrize("piece", PIECES)
def test_the_call_in_the_middle_of_brackets_is_read(piece: str, tmp_path: Path) -> None:
    """By itself such a piece is no Python."""
    file = tmp_path / "piece.py"
    file.write_text(f"y = ({piece})\n")
    lines = piece.splitlines()
    span = Span(1, len(lines), 5, len(lines[-1]) + (5 if len(lines) == 1 else 0))
    assert _calls.name(Site(str(file), 1, "f", (Frame(str(file), 1, "f", 0),), span)) == PIECES[piece]


def test_a_line_in_the_middle_of_a_chain_is_read(tmp_path: Path) -> None:
    """All that Python 3.10 tells."""
    file = tmp_path / "piece.py"
    file.write_text("y = (\n    x.add(1)\n    .to(device)  # here\n)\n")
    assert _calls.name(Site(str(file), 3, "f", (Frame(str(file), 3, "f", 0),))) == "torch.Tensor.to"


MAINS = [("<stdin>", None, False), (None, None, False), ("guard.py", 'if __name__ == "__main__":\n    pass\n', True), ("plain.py", "pass\n", False)]


@pytest.mark.parametrize(("name", "text", "importable"), MAINS)
def test_whether_a_spawned_child_could_import_the_program(
    name: str | None, text: str | None, importable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read from stdin has a file's name, but cannot: multiprocessing would look for a file `<stdin>`."""
    main = types.ModuleType("__main__")
    if name is not None:
        main.__file__ = name if text is None else str(tmp_path / name)
    if text is not None:
        (tmp_path / str(name)).write_text(text)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert (_respond._main_guard(), bool(_respond._script())) == (importable, text is not None)
