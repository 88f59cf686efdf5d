"""The parts that only think, by tables: the user's line, who made a child, what a call is called, verdict, advice and text."""

from __future__ import annotations

import itertools
import os
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

from cudaguard import _advice, _calls, _journal, _makers, _places, _text, _verdict
from cudaguard._advice import Case
from cudaguard._journal import DRIVER, INITIALISED, QUERIED, Fork, Journal, Late, Start, Step, Worker
from cudaguard._places import GUARD, LIBRARY, STANDARD, TORCH, USER, Frame, Site
from cudaguard._verdict import Facts, Finding, Touch

SITE = "/env/lib/python3.11/site-packages"
TORCH_HOME = f"{SITE}/torch"
LIB = _places.STDLIB.rstrip(os.sep)
APP = "/home/me/train.py"
DATA = "/home/me/data.py"


@pytest.fixture(autouse=True)
def _pretended_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that is installed at TORCH_HOME, and no memory of other files."""
    torch = type(sys)("torch")
    torch.__file__ = f"{TORCH_HOME}/__init__.py"
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(_places, "_kinds", {})


def frames(*files: str) -> tuple[Frame, ...]:
    """A stack, outermost first; line numbers count from 1."""
    return tuple(Frame(file, line, f"f{line}", 0) for line, file in enumerate(files, 1))


KINDS = [
    (APP, USER),
    ("<stdin>", USER),
    ("<ipython-input-3>", USER),
    (f"{SITE}/numpy/core.py", LIBRARY),
    ("/usr/lib/python3/dist-packages/yaml/__init__.py", LIBRARY),
    (f"{TORCH_HOME}/cuda/__init__.py", TORCH),
    (f"{SITE}/torchvision/io.py", LIBRARY),
    (f"{LIB}/multiprocessing/process.py", STANDARD),
    ("<frozen importlib._bootstrap>", STANDARD),
    (f"{_places.HERE}_hooks/cuda.py", GUARD),
    (f"{SITE}/_cudaguard_start.py", GUARD),
]


@pytest.mark.parametrize(("file", "kind"), KINDS)
def test_whose_file_it_is(file: str, kind: int) -> None:
    """Told by its path alone."""
    assert _places.kind(file) == kind


LINES = [
    ((APP, DATA), 2),
    ((APP, DATA, f"{TORCH_HOME}/cuda/__init__.py"), 2),
    ((APP, f"{SITE}/numpy/a.py", f"{LIB}/os.py"), 1),
    ((APP, "/x/dist-packages/b.py"), 1),
    ((f"{LIB}/runpy.py", f"{SITE}/tool/main.py", f"{TORCH_HOME}/nn.py"), 2),
    ((f"{SITE}/a.py", f"{SITE}/b.py", f"{LIB}/threading.py"), 2),
    ((f"{LIB}/runpy.py", f"{TORCH_HOME}/a.py", f"{LIB}/os.py"), 3),
    ((f"{SITE}/server.py", APP, f"{SITE}/a.py"), 2),
    ((APP, "<frozen importlib._bootstrap>", f"{SITE}/pkg/__init__.py", "<frozen importlib._bootstrap>", f"{TORCH_HOME}/a.py"), 1),
]


@pytest.mark.parametrize(("files", "line"), LINES)
def test_the_user_s_line(files: tuple[str, ...], line: int) -> None:
    """Innermost outside all libraries; if there is none, outside the standard library and torch; else the innermost."""
    site = _places.from_frames(frames(*files))
    assert (site.line, site.file) == (line, files[line - 1])


def test_a_stack_is_whole_but_for_the_import_machinery() -> None:
    """Library frames stay, and so does the chain of imports; importlib's own frames go."""
    stack = frames(APP, "<frozen importlib._bootstrap>", f"{SITE}/a/__init__.py", "<frozen importlib._bootstrap_external>", f"{SITE}/a/b.py")
    assert [frame.line for frame in _places.from_frames(stack).stack] == [1, 3, 5]


def test_the_parent_s_frames_are_cut() -> None:
    """Calls that still wait where the fork was are the parent's; a frame that went on is the child's own."""
    fork = frames(APP, f"{LIB}/multiprocessing/popen_fork.py")
    assert _places.from_frames((*fork, Frame(DATA, 9, "f", 0)), fork).stack == (Frame(DATA, 9, "f", 0),)
    went_on = (fork[0], Frame(*fork[1][:3], at=7), Frame(DATA, 9, "f", 0))
    assert _places.from_frames(went_on, fork).stack == went_on[1:]
    assert _places.from_frames(fork, fork).line == 1, "a place is never empty"


def test_a_place_holds_no_frame() -> None:
    """Frames keep the user's tensors alive: a site has names and numbers only."""
    site = _places.here()
    assert all(type(part) in (str, int) for frame in site.stack for part in frame)
    assert (site.file, site.function) == (__file__, "test_a_place_holds_no_frame")
    assert site.code == "site = _places.here()"
    assert set(site.as_dict()) == {"file", "line", "function", "code", "cell", "stack"}


MP = f"{LIB}/multiprocessing"
MAKERS = [
    ((APP, f"{TORCH_HOME}/utils/data/dataloader.py", f"{MP}/process.py", f"{MP}/popen_fork.py"), "dataloader"),
    ((APP, f"{SITE}/torchdata/stateful_dataloader/stateful_dataloader.py", f"{MP}/process.py"), "stateful-dataloader"),
    ((APP, f"{MP}/process.py", f"{MP}/context.py"), "process"),
    ((APP, f"{MP}/pool.py", f"{MP}/process.py"), "pool"),
    ((APP, f"{LIB}/concurrent/futures/process.py", f"{MP}/process.py"), "executor"),
    ((APP, f"{SITE}/datasets/arrow_dataset.py", f"{SITE}/multiprocess/pool.py"), "datasets"),
    ((APP, f"{SITE}/multiprocess/pool.py"), "pool"),
    ((APP, f"{SITE}/joblib/parallel.py", f"{MP}/pool.py"), "joblib"),
    ((f"{SITE}/gunicorn/app/wsgiapp.py", f"{SITE}/gunicorn/arbiter.py"), "gunicorn"),
    ((f"{SITE}/celery/bin/worker.py", f"{SITE}/billiard/process.py"), "celery"),
    ((APP, f"{SITE}/lightning/pytorch/strategies/launchers/multiprocessing.py", f"{MP}/process.py"), "lightning"),
    ((f"{SITE}/gunicorn/arbiter.py", APP, f"{MP}/process.py"), "process"),
    ((APP,), "os.fork"),
]


@pytest.mark.parametrize(("files", "maker"), MAKERS)
def test_who_made_the_child(files: tuple[str, ...], maker: str) -> None:
    """The library between the user's last line and the fork, never one further out."""
    assert _makers.maker(frames(*files)) == maker


CALLS = [
    ("return sample.to('cuda')", "torch.Tensor.to"),
    ("torch.cuda.is_available()", "torch.cuda.is_available"),
    ("x = torch.zeros(3, device='cuda')", "torch.zeros"),
    ("y = model(batch).cuda()", "torch.Tensor.cuda"),
    ("net = cupy.zeros(3)", "cupy.zeros"),
    ("", ""),
]


@pytest.mark.parametrize(("code", "name"), CALLS)
def test_what_a_c_call_is_called_is_read_from_its_source(code: str, name: str, tmp_path: Path) -> None:
    """A C function has no frame: the running instruction's source tells."""
    file = tmp_path / "line.py"
    file.write_text(code + "\n")
    call = code.removeprefix("return ").partition(" = ")[2] or code.removeprefix("return ")
    start = code.index(call)
    span = _places.Span(1, 1, start, len(code)) if code else None
    assert _calls.name(Site(str(file), 1, "f", frames(str(file)), span)) == name


WHOLE_LINES = [
    ("return torch.tensor([float(i)]).cuda()  # touch", "torch.Tensor.cuda"),
    ("attempt(lambda: torch.zeros(1, device='cuda'))", "torch.zeros"),
    ("print(model(x.to(device)))", "torch.Tensor.to"),
    ("with torch.cuda.device(0):", "torch.cuda.device"),
    ("net = cupy.zeros(3)", "cupy.zeros"),
    ("total = to(3)", "to"),
]


@pytest.mark.parametrize(("code", "name"), WHOLE_LINES)
def test_of_the_calls_on_a_line_torchs_is_named_where_python_does_not_tell(code: str, name: str, tmp_path: Path) -> None:
    """Python 3.10 does not record where in a line it is."""
    file = tmp_path / "line.py"
    file.write_text(code + "\n")
    assert _calls.name(Site(str(file), 1, "f", frames(str(file)))) == name


@pytest.mark.parametrize(
    ("file", "function", "name"),
    [
        (f"{TORCH_HOME}/cuda/__init__.py", "current_device", "torch.cuda.current_device"),
        (f"{TORCH_HOME}/nn/modules/module.py", "cuda", "torch.nn.Module.cuda"),
        (f"{TORCH_HOME}/serialization.py", "load", "torch.load"),
        (f"{TORCH_HOME}/cuda/memory.py", "mem_get_info", "torch.cuda.mem_get_info"),
    ],
)
def test_what_a_function_of_torch_is_called(file: str, function: str, name: str) -> None:
    """The outermost torch function below the user's line, by its public name."""
    stack = (Frame(APP, 3, "main", 0), Frame(file, 9, function, 0), Frame(f"{TORCH_HOME}/cuda/__init__.py", 1, "_lazy_init", 0))
    assert _calls.name(Site(APP, 3, "main", stack)) == name


def test_what_an_import_of_a_module_of_torchs_calls() -> None:
    """Its body and the functions of its own are no call of the user's; what they ask for is."""
    extension = f"{TORCH_HOME}/utils/cpp_extension.py"
    torchs = (
        Frame(extension, 20, "<module>", 0),
        Frame(extension, 9, "_find_cuda_home", 0),
        Frame(f"{TORCH_HOME}/cuda/__init__.py", 1, "is_available", 0),
    )
    assert _calls.name(Site(APP, 3, "<module>", (Frame(APP, 3, "<module>", 0), *torchs))) == "torch.cuda.is_available"


def at(line: int, file: str = APP) -> Site:
    """A place."""
    return Site(file, line, "main", (Frame(file, line, "main", 0),))


def journal(*tiers: str | None, pids: tuple[int, ...] = (10, 11, 12, 13)) -> Journal:
    """A line of forks, each made when the process had gone as far as its tier says."""
    book = Journal()
    book.pid = pids[0]
    for number, tier in enumerate(tiers):
        if tier is not None and book.below(tier):
            book.steps.append(Step(pids[number], tier, "torch.cuda.init", at(1 + number), None, 0.0))
        book.forked(Fork(pids[number], pids[number + 1], tier, (Frame(APP, 50 + number, "main", 0),)))
    return book


FORKS = [
    ((None,), None),
    ((INITIALISED,), 50),
    ((QUERIED,), 50),
    ((DRIVER,), 50),
    ((None, INITIALISED), 51),
    ((INITIALISED, INITIALISED), 50),
    ((None, None, QUERIED), 52),
    ((None, None), None),
]


@pytest.mark.parametrize(("tiers", "line"), FORKS)
def test_which_fork_is_to_blame(tiers: tuple[str | None, ...], line: int | None) -> None:
    """The first fork of the process's own line that was made while CUDA was up."""
    fork = journal(*tiers).bad_fork()
    assert (fork.site.line if fork else None) == line


def judged(book: Journal, slug: str = "fork-after-init", facts: Facts = Facts()) -> Finding:  # noqa: B008  # frozen
    """The verdict on a touch in this process."""
    bad = book.bad_fork()
    assert bad is not None
    return _verdict.forked(slug, book, Touch(book.pid, "torch.Tensor.cuda", at(90, DATA)), facts, bad)


def test_the_verdict_names_processes_tier_and_places() -> None:
    """Everything known is in the finding, also as a dict."""
    book = journal(INITIALISED)
    book.worker = Worker(1, 4)
    found = judged(book)
    assert (found.pid, found.ppid, found.tier, found.severity) == (11, 10, INITIALISED, "error")
    assert (found.origin.site.line, found.fork.line, found.touch.site.line) == (1, 50, 90)  # type: ignore[union-attr]
    shown = found.as_dict()
    assert shown["worker"] == {"id": 1, "num_workers": 4}
    assert shown["origin"]["call"] == "torch.cuda.init"  # type: ignore[index]


def test_a_grandchild_s_own_parent_is_not_the_origin() -> None:
    """What a process forked from the bad fork tried is not what spoilt it; later forks are in the fork's stack."""
    book = journal(INITIALISED, INITIALISED)
    book.steps.append(Step(11, QUERIED, "torch.cuda.is_available", at(70), None, 0.0))
    found = judged(book)
    assert found.origin is not None
    assert found.origin.site.line == 1
    assert [frame.line for frame in found.fork.stack] == [50, 51]  # type: ignore[union-attr]


def test_a_guard_that_came_late_knows_no_origin() -> None:
    """Then the origin is None and the finding says where the guard came on."""
    book = Journal()
    book.pid, book.late = 10, Late(10, at(5))
    book.forked(Fork(10, 11, book.tier(), (Frame(APP, 50, "main", 0),)))
    found = judged(book)
    assert found.origin is None
    assert found.as_dict()["origin"] is None
    assert "cudaguard came on later, at" in _text.text(found)


def test_severities_are_those_of_the_contract() -> None:
    """Every slug has one."""
    table = {
        "error": {
            "fork-after-init", "inherited-tensor", "foreign-library", "worker-died", "unsendable-output", "pin-cuda-output", "ipc-broken",
            "forbidden-init",
        },
        "warning": {"lost-gpu"},
        "note": {"rerouted", "cuda-ipc", "cuda-in-worker", "import-initialises", "internal"},
    }  # fmt: skip
    for severity, slugs in table.items():
        assert {slug for slug, found in _verdict.SEVERITY.items() if found == severity} == slugs


PLAIN = Case(
    **{
        **{field: None for field in Case._fields},
        "slug": "fork-after-init",
        "maker": "dataloader",
        "start_method": "fork",
        "tier": INITIALISED,
        "origin": Step(10, INITIALISED, "torch.nn.Module.cuda", at(1), None, 0.0),
        "fork": at(50),
        "touch": at(90, DATA),
        "call": "torch.Tensor.cuda",
        "notebook": False,
        "spawn_works": True,
        "said": "",
        "detail": "",
        "steps": (),
        "default_device": False,
    }
)
QUERY = Step(10, QUERIED, "torch.cuda.is_available", at(1), None, 0.0)
FIRST = [
    ({}, "cpu-worker"),
    ({"maker": "stateful-dataloader"}, "cpu-worker"),
    ({"slug": "inherited-tensor"}, "copy-dataset-to-cpu"),
    ({"call": "torch.load"}, "map-location"),
    ({"call": "torch.jit.load"}, "map-location"),
    ({"maker": "gunicorn"}, "server-hook"),
    ({"maker": "celery"}, "server-hook"),
    ({"maker": "pool"}, "pool-spawn"),
    ({"maker": "executor"}, "pool-spawn"),
    ({"maker": "joblib"}, "pool-spawn"),
    ({"maker": "process"}, "spawn-context"),
    ({"maker": "datasets"}, "spawn-context"),
    ({"maker": "os.fork"}, "late-init"),
    ({"default_method": "spawn"}, "spawn-context"),
]


@pytest.mark.parametrize(("facts", "first"), FIRST, ids=lambda value: str(value))
def test_the_best_advice_comes_first(facts: dict[str, object], first: str) -> None:
    """Chosen by who forked, how far the parent had gone and what was touched."""
    advice = _advice.choose(PLAIN._replace(**facts))  # type: ignore[arg-type]
    assert advice[0].id == first
    assert len(advice) <= 3
    assert len({fix.id for fix in advice}) == len(advice)


def test_nobody_is_told_to_spawn_who_cannot() -> None:
    """No spawn for a server, in a notebook, or for a script without a `__main__` guard; whatever else is the case, at most three."""
    makers = (
        "dataloader",
        "stateful-dataloader",
        "process",
        "pool",
        "executor",
        "datasets",
        "joblib",
        "celery",
        "gunicorn",
        "lightning",
        "os.fork",
        "c-fork",
    )
    for maker, slug, tier in itertools.product(makers, ("fork-after-init", "inherited-tensor"), (DRIVER, QUERIED, INITIALISED)):
        case = PLAIN._replace(maker=maker, slug=slug, tier=tier, origin=QUERY._replace(tier=tier))
        assert 0 < len(_advice.choose(case)) <= 3, (maker, slug, tier)
        hindered = case._replace(spawn_works=False)
        assert not {fix.id for fix in _advice.choose(hindered)} & {"spawn-context", "pool-spawn"}, hindered
        if maker in ("gunicorn", "celery", "c-fork", "os.fork"):
            assert "spawn-context" not in {fix.id for fix in _advice.choose(case)}


@pytest.mark.parametrize(
    ("facts", "works"),
    [(Facts(), True), (Facts(notebook=True), False), (Facts(main_guard=False), False), (Facts(unpicklable="dataset.lock"), False)],
)
def test_what_hinders_spawn_is_known_to_the_verdict(facts: Facts, works: bool) -> None:
    """A notebook, a script without a `__main__` guard, work that does not pickle."""
    book = journal(INITIALISED)
    book.forks[0] = book.forks[0]._replace(waiting=frames(APP, f"{MP}/process.py"))
    assert ("spawn-context" in {fix.id for fix in judged(book, facts=facts).advice}) is works


def test_a_harmless_query_may_be_asked_another_way() -> None:
    """`is_available()` in the parent has a switch; a real start has not."""
    assert "nvml-check" in {fix.id for fix in _advice.choose(PLAIN._replace(tier=QUERIED, origin=QUERY))}
    assert "nvml-check" not in {fix.id for fix in _advice.choose(PLAIN)}


def test_the_text_cuts_long_lines_and_paths_and_is_ascii(tmp_path: Path) -> None:
    """A long source line ends in dots, a long path begins with them, and both stay findable."""
    deep = tmp_path / ("folder_" * 6) / ("folder_" * 6)
    deep.mkdir(parents=True)
    file = deep / "train.py"
    file.write_text(textwrap.dedent("x = torch.zeros(1, device='cuda')" + " + 1" * 200))
    book = journal(INITIALISED)
    bad = book.bad_fork()
    assert bad is not None
    text = _text.text(_verdict.forked("fork-after-init", book, Touch(11, "torch.zeros", at(1, str(file))), Facts(simulated=True), bad))
    lines = text.splitlines()
    shown = next(line for line in lines if "torch.zeros" in line and line.endswith("..."))
    assert len(shown.strip()) <= _text.WIDTH
    assert any("train.py:1" in line and "..." in line and str(tmp_path) not in line for line in lines)
    assert text.isascii()
    assert text.startswith("Cannot re-initialize CUDA in forked subprocess")
    assert "fork-after-init" in lines[-1]


def test_a_relative_path_is_shown_where_it_is_shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files below the working folder are named from there; a working folder that is gone harms nothing."""
    monkeypatch.chdir(tmp_path)
    assert _text.short(str(tmp_path / "a" / "b.py")) == os.path.join("a", "b.py")
    assert _text.short("/other/b.py") == "/other/b.py"
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert _text.short("/other/b.py") == "/other/b.py"


def test_a_started_child_knows_its_edge() -> None:
    """What started a process is its edge where there is one, else the last fork."""
    book = journal(None)
    assert isinstance(book.edge(), Fork)
    book.start = Start(10, at(7), "dataloader", "spawn")
    assert book.edge() is book.start
    assert _journal.TIERS == (DRIVER, QUERIED, INITIALISED)


def test_a_sysconfig_that_is_not_ready_names_no_folders() -> None:
    class Half:
        @staticmethod
        def get_path(name: str) -> str:
            raise AttributeError("'abi_thread'")

    assert [_places._schemes(config) for config in (None, object(), Half)] == [[], [], []]
    assert all("packages" in folder for folder in _places._schemes(sysconfig))


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (Facts(main_guard=False), 'the script has no `if __name__ == "__main__":`'),
        (Facts(main_guard=False, script=False), "the program is in no file that a child could import"),
        (Facts(unpicklable="dataset.lock"), "dataset.lock does not pickle"),
        (Facts(notebook=True), "in a notebook"),
    ],
)
def test_why_spawn_is_no_way_out_is_said(facts: Facts, said: str) -> None:
    """It is the advice that everybody finds, so it must be said why it is not given."""
    book = journal(INITIALISED)
    book.forks[0] = book.forks[0]._replace(waiting=frames(APP, f"{MP}/process.py"))
    (note,) = [line for line in _text.text(judged(book, facts=facts)).splitlines() if line.startswith("  note ")]
    assert said in note


def test_what_was_sent_on_has_a_story_of_its_own() -> None:
    """Nobody is gone there."""
    said = "Attempted to send CUDA tensor received from another process; this is not currently supported. Consider cloning before sending."
    texts = [
        _text.text(_verdict.crossing("ipc-broken", journal(INITIALISED), words, "", None, Facts())) for words in (said, "invalid resource handle")
    ]
    assert "was to be sent on" in texts[0] and "must live" not in texts[0]
    assert "must live" in texts[1]
