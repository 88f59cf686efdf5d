"""The classic case: CUDA initialised, workers forked, CUDA touched in one. On simulated devices; real processes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guarded import Finding, Program, Run, run

CLASSIC = """
    import json, os, pickle, sys
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Squares(Dataset):
        def __init__(self, size=4):
            self.size = size
        def __len__(self):
            return self.size
        def __getitem__(self, i):
            return torch.tensor([float(i)]).cuda()  # touch

    def start():
        return torch.ones(1).cuda()  # init

    def caught(loader):
        try:
            for batch in loader:  # fork
                pass
        except RuntimeError as error:
            return error
        raise AssertionError("nothing was raised")
"""

# Prints the type of what the parent caught.
SHORT = (
    CLASSIC
    + """
    start()
    print(type(caught(DataLoader(Squares(), num_workers=1, multiprocessing_context="fork", timeout=20))).__name__)
"""
)

SITE_KEYS = {"file", "line", "function", "code", "cell", "stack"}
KEYS = {
    "schema", "slug", "severity", "mode", "message", "simulated", "pid", "ppid", "node", "rank", "worker", "maker",
    "start_method", "tier", "origin", "fork", "touch", "advice", "time",
}  # fmt: skip
SENTENCE = "Cannot re-initialize CUDA in forked subprocess"


def _frames(site: Finding) -> list[tuple[str, int]]:
    return [(Path(frame["file"]).name, frame["line"]) for frame in site["stack"]]


@pytest.fixture(scope="module")
def classic(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The classic program, run once; what it saw."""
    source = (
        CLASSIC
        + """
    import cudaguard, traceback
    start()
    loader = DataLoader(Squares(), num_workers=2, multiprocessing_context="fork", timeout=20)
    error = caught(loader)
    again = pickle.loads(pickle.dumps(error))
    report = cudaguard.report()
    origin = cudaguard.origin()
    print(json.dumps({
        "type": type(error).__name__, "mro": [c.__name__ for c in type(error).__mro__], "text": str(error), "finding": error.finding,
        "cause": str(error.__cause__), "message": hasattr(error, "message"),
        "again": [type(again).__name__, str(again) == str(error), again.finding == error.finding],
        "args": len(error.args), "pid": os.getpid(), "origin": list(origin), "fork_safe": cudaguard.fork_safe(),
        "report": [f["slug"] for f in report.findings], "report_text": str(report), "html": report._repr_html_(),
        "traceback": "".join(traceback.format_exception(error)), "same": report.findings[0] == error.finding,
    }))
    """
    )
    done = run(tmp_path_factory.mktemp("classic"), source)
    assert done.err == ""
    return {**done.json(), "run": done}


def test_the_parent_raises_the_guard_s_error(classic: dict[str, Any]) -> None:
    """It is a CudaForkError and a RuntimeError, of one string, without an attribute `message`."""
    assert classic["type"] == "CudaForkError"
    assert classic["mro"][:3] == ["CudaForkError", "CudaGuardError", "RuntimeError"]
    assert classic["message"] is False
    assert classic["args"] == 1


def test_the_error_survives_pickling_whole(classic: dict[str, Any]) -> None:
    """Type, text and finding are the same after a round trip."""
    assert classic["again"] == ["CudaForkError", True, True]


def test_the_cause_is_the_worker_s_own_traceback(classic: dict[str, Any]) -> None:
    """It names the user's line in the worker, and no line of the guard's."""
    text = classic["cause"]
    assert f'program.py", line {classic["run"].line("# touch")}, in __getitem__' in text
    assert "cudaguard" not in text.replace("test_cudaguard", "")


def test_the_finding_has_every_key_of_the_schema(classic: dict[str, Any]) -> None:
    """No key is left out or added, at any level."""
    finding = classic["finding"]
    assert set(finding) == KEYS
    assert set(finding["fork"]) == SITE_KEYS
    assert set(finding["origin"]) - {"between"} == set(finding["touch"]) == SITE_KEYS | {"call"}
    for site in (finding["origin"], finding["fork"], finding["touch"]):
        assert all(set(frame) == {"file", "line", "function"} for frame in site["stack"])
    assert all(set(advice) == {"id", "text"} for advice in finding["advice"])
    assert set(finding["worker"]) == {"id", "num_workers"}


def test_the_finding_says_who_and_how(classic: dict[str, Any]) -> None:
    """Slug, severity, mode, processes, maker and tier are right."""
    finding = classic["finding"]
    wanted = {
        "schema": 1, "slug": "fork-after-init", "severity": "error", "mode": "error", "simulated": True, "rank": None, "maker": "dataloader",
        "start_method": "fork", "tier": "initialised", "worker": {"id": 0, "num_workers": 2}, "ppid": classic["pid"],
    }  # fmt: skip
    assert {key: finding[key] for key in wanted} == wanted
    assert finding["pid"] not in (0, classic["pid"])
    assert finding["message"].startswith(SENTENCE)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", finding["time"])
    assert finding["node"]


def test_the_finding_names_all_three_lines(classic: dict[str, Any]) -> None:
    """Origin, fork and touch are the user's lines, with their code, function and call."""
    finding, script = classic["finding"], classic["run"]
    for name, mark, function in (("origin", "# init", "start"), ("fork", "# fork", "caught"), ("touch", "# touch", "__getitem__")):
        site = finding[name]
        assert (site["file"], site["line"], site["function"], site["cell"]) == (str(script.script), script.line(mark), function, None)
        assert site["code"].endswith(mark)
    assert finding["origin"]["call"] == finding["touch"]["call"] == "torch.Tensor.cuda"
    assert "between" not in finding["origin"]


def test_stacks_are_whole_and_the_child_s_begins_after_the_fork(classic: dict[str, Any]) -> None:
    """The fork's stack reaches from the module down to multiprocessing; the touch's has none of the parent's frames and none of the guard's."""
    finding, script = classic["finding"], classic["run"]
    fork, touch = _frames(finding["fork"]), _frames(finding["touch"])
    assert fork[0] == ("program.py", script.line("error = caught(loader)"))
    assert fork[1] == ("program.py", script.line("# fork"))
    assert fork[-1][0] == "popen_fork.py"
    assert ("program.py", script.line("# fork")) not in touch
    assert ("program.py", script.line("# touch")) in touch
    assert ("worker.py", "_worker_loop") in [(Path(f["file"]).name, f["function"]) for f in finding["touch"]["stack"]]
    for site in (finding["origin"], finding["fork"], finding["touch"]):
        assert not [f for f in site["stack"] if "/cudaguard/" in f["file"] and "_shadow" not in f["file"]]


def test_the_text_follows_its_rules(classic: dict[str, Any]) -> None:
    """PyTorch's sentence first, the places in order as file:line with code and process, at most three fixes, the slug last; ASCII."""
    text, finding = classic["text"], classic["finding"]
    assert text.startswith(SENTENCE)
    at = [text.index(f"program.py:{finding[name]['line']}") for name in ("origin", "fork", "touch")]
    assert at == sorted(at)
    for name in ("origin", "fork", "touch"):
        assert finding[name]["code"] in text
    assert all(str(pid) in text for pid in (finding["pid"], finding["ppid"]))
    assert 1 <= len(finding["advice"]) <= 3
    fixes = [text.index(advice["text"].splitlines()[0]) for advice in finding["advice"]]
    assert fixes == sorted(fixes)
    assert fixes[0] > at[-1]
    assert "[fork-after-init]" in text.splitlines()[-1]
    assert text.isascii()


def test_the_text_ends_the_traceback(classic: dict[str, Any]) -> None:
    """Nothing comes after the guard's words."""
    assert classic["traceback"].rstrip().endswith(classic["text"].rstrip())


def test_advice_for_a_loader_is_to_build_on_the_cpu_first(classic: dict[str, Any]) -> None:
    """Both halves of that fix, then spawn."""
    assert [advice["id"] for advice in classic["finding"]["advice"]] == ["cpu-worker", "move-in-parent", "spawn-context"]


def test_the_parent_s_report_and_answers(classic: dict[str, Any]) -> None:
    """`report()` has the worker's finding, `origin()` the line, and `fork_safe()` says no."""
    script = classic["run"]
    assert classic["report"] == ["fork-after-init"]
    assert classic["same"] is True
    assert SENTENCE in classic["report_text"]
    assert classic["html"].startswith("<")
    assert SENTENCE in classic["html"]
    assert classic["origin"] == [str(script.script), script.line("# init"), "torch.Tensor.cuda", "initialised", None]
    assert classic["fork_safe"] is False


def test_every_worker_that_touched_is_in_the_report_file_once(classic: dict[str, Any]) -> None:
    """One whole line a worker, the same as the parent's finding."""
    lines = classic["run"].report
    assert {line["pid"] for line in lines} >= {classic["finding"]["pid"]}
    assert len({line["pid"] for line in lines}) == len(lines) <= 2
    assert next(line for line in lines if line["pid"] == classic["finding"]["pid"]) == classic["finding"]


STATEFUL = (
    "from torch.utils.data import DataLoader, Dataset",
    "from torch.utils.data import Dataset\n    from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader",
)


def test_other_loaders_and_later_epochs(program: Program) -> None:
    """StatefulDataLoader, persistent workers, a second loader, pinning, batches of one: the same error, each with its own fork line."""
    source = (
        CLASSIC.replace(*STATEFUL)
        + """
    from torch.utils.data import DataLoader as Plain
    start()
    seen = []
    def note(error):
        f = error.finding
        seen.append([type(error).__name__, f["slug"], f["maker"], f["fork"]["line"], f["touch"]["line"], f["worker"]["num_workers"]])
    note(caught(DataLoader(Squares(), num_workers=1, multiprocessing_context="fork", timeout=20)))
    note(caught(Plain(Squares(), num_workers=1, persistent_workers=True, multiprocessing_context="fork", timeout=20)))
    note(caught(Plain(Squares(), batch_size=None, num_workers=3, multiprocessing_context="fork", timeout=20)))
    one = iter(Plain(Squares(), num_workers=1, multiprocessing_context="fork", timeout=20))  # one
    two = iter(Plain(Squares(), num_workers=1, multiprocessing_context="fork", timeout=20))  # two
    for waiting in (two, one):
        try:
            next(waiting)
        except RuntimeError as error:
            note(error)
    print(json.dumps(seen))
    """
    )
    done = program(source)
    fork, touch, one, two = (done.line(f"# {mark}") for mark in ("fork", "touch", "one", "two"))
    assert done.json() == [
        ["CudaForkError", "fork-after-init", "stateful-dataloader", fork, touch, 1],
        ["CudaForkError", "fork-after-init", "dataloader", fork, touch, 1],
        ["CudaForkError", "fork-after-init", "dataloader", fork, touch, 3],
        ["CudaForkError", "fork-after-init", "dataloader", two, touch, 1],
        ["CudaForkError", "fork-after-init", "dataloader", one, touch, 1],
    ]
    assert "cudaguard" not in done.err.lower()


def test_spawned_and_forkserver_loaders_work(program: Program) -> None:
    """Their workers begin anew, so CUDA works in them, and only a note says what it costs."""
    source = (
        CLASSIC
        + """
    if __name__ == "__main__":
        start()
        counts = [sum(len(b) for b in DataLoader(Squares(), num_workers=1, multiprocessing_context=m, timeout=60)) for m in ("spawn", "forkserver")]
        print(json.dumps(counts))
    """
    )
    done = program(source)
    assert done.json() == [4, 4]
    assert done.err == ""
    notes = [finding for finding in done.report if finding["slug"] == "cuda-in-worker"]
    assert {finding["start_method"] for finding in notes} == {"spawn", "forkserver"}
    assert {finding["slug"] for finding in done.report} <= {"cuda-in-worker", "cuda-ipc"}
    for finding in notes:
        assert (finding["severity"], finding["maker"], finding["worker"]) == ("note", "dataloader", {"id": 0, "num_workers": 1})
        assert finding["fork"]["line"] == done.line("counts = [")
        assert finding["touch"]["line"] == done.line("# touch")


def test_record_and_warn_leave_pytorch_its_own_error(program: Program) -> None:
    """In `record` there is only the report; in `warn` one CudaForkWarning a place besides; the error is PyTorch's."""
    source = (
        CLASSIC
        + """
    start()
    loader = DataLoader(Squares(), num_workers=1, multiprocessing_context="fork", timeout=20)
    errors = [caught(loader), caught(loader)]
    print(json.dumps([[type(e).__name__, "Cannot re-initialize CUDA in forked subprocess" in str(e), hasattr(e, "finding")] for e in errors]))
    """
    )
    for mode in ("record", "warn"):
        done = program(source, mode=mode)
        assert done.json() == [["RuntimeError", True, False]] * 2
        assert [(f["slug"], f["mode"]) for f in done.report] == [("fork-after-init", mode)] * 2
        assert done.err.count("CudaForkWarning") == (2 if mode == "warn" else 0)  # one for each of the two workers' processes
    assert f"program.py:{done.line('# touch')}: CudaForkWarning" in done.err


def test_warnings_come_once_a_place(program: Program) -> None:
    """A process that touches again at the same line is not warned again; another line is another place."""
    source = """
        import os, torch, warnings
        warnings.simplefilter("always")
        torch.ones(1).cuda()
        pid = os.fork()
        if pid == 0:
            for _ in range(3):
                try:
                    torch.ones(1).cuda()  # first
                except RuntimeError:
                    pass
            try:
                torch.ones(1).cuda()  # second
            except RuntimeError:
                pass
            os._exit(0)
        os.waitpid(pid, 0)
    """
    done = program(source, mode="warn").ok()
    assert done.err.count("CudaForkWarning") == 2
    assert [finding["touch"]["line"] for finding in done.report] == [done.line("# first"), done.line("# second")]
    assert f"program.py:{done.line('# second')}: CudaForkWarning" in done.err


def test_warnings_as_errors_are_the_user_s_wish(program: Program) -> None:
    """Under `-W error` the warning is raised, since the user asked for it, and no fault of the guard's is noted."""
    source = SHORT.replace("except RuntimeError", "except (RuntimeError, RuntimeWarning)")
    done = program(source, mode="warn", flags=("-W", "error::RuntimeWarning")).ok()
    assert done.out.strip() == "CudaForkWarning"
    assert done.slugs() == ["fork-after-init"]


IGNORES = [
    ("fork-after-init", True),
    ("fork-after-init@program.py", True),
    ("fork-after-init@gram.py", False),
    ("fork-after-init@program.py:{touch}", True),
    ("fork-after-init@program.py:{fork}", False),
    ("lost-gpu,fork-after-init", True),
    ("inherited-tensor", False),
]


def test_ignored_touches_do_what_pytorch_does(program: Program) -> None:
    """Rules by slug, file and line, from the variable and from `ignore()`: no finding, and PyTorch's own error."""
    source = """
        import json, os, sys
        import cudaguard, torch
        from cudaguard import _config
        rules = json.loads(sys.argv[1])
        torch.ones(1).cuda()

        def child(rule):
            pid = os.fork()  # fork
            if pid:
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            _config.use(_config.current()._replace(ignore=_config.from_environ({"CUDAGUARD_IGNORE": rule}).ignore))
            try:
                torch.ones(1).cuda()  # touch
            except RuntimeError as error:
                os._exit(1 if type(error) is RuntimeError else 2)
            os._exit(3)

        found = [child(rule) for rule in rules]
        with cudaguard.ignore("fork-after-init"):
            found.append(child(""))
        found.append(child(""))
        try:
            cudaguard.ignore("no-such-slug")
        except ValueError as error:
            found.append("fork-after-init" in str(error))
        print(json.dumps(found))
    """
    lines = source.splitlines()
    numbers = {mark: next(n for n, text in enumerate(lines, 1) if f"# {mark}" in text) for mark in ("fork", "touch")}
    rules = [rule.format(**numbers) for rule, _ in IGNORES]
    done = program(source, json.dumps(rules))
    assert done.json() == [1 if silent else 2 for _, silent in IGNORES] + [1, 2, True]
    assert len(done.report) == 1 + sum(not silent for _, silent in IGNORES)


def test_the_ignore_variable_is_read(program: Program) -> None:
    """`CUDAGUARD_IGNORE` reaches workers, and nothing is written for what it silences."""
    done = program(SHORT, env={"CUDAGUARD_IGNORE": "fork-after-init@program.py"}).ok()
    assert done.out.strip() == "RuntimeError"
    assert done.report == []


def test_grandchildren_are_judged_by_their_line_of_forks(program: Program) -> None:
    """A grandchild is as bad as a child: the fork is the first after the origin, the later one is in its stack. What it spawns is clean."""
    source = """
        import json, multiprocessing, os, sys, torch

        def touch():
            torch.ones(1).cuda()  # touch

        def second():
            pid = os.fork()  # second
            if pid:
                return os.waitpid(pid, 0)
            try:
                touch()
            except RuntimeError as error:
                pass
            os._exit(0)

        def clean(queue):
            queue.put(str(torch.ones(1).cuda().device))

        if __name__ == "__main__":
            torch.ones(1).cuda()  # init
            pid = os.fork()  # first
            if pid == 0:
                second()
                context = multiprocessing.get_context("spawn")
                queue = context.SimpleQueue()
                process = context.Process(target=clean, args=(queue,))
                process.start()
                print(queue.get(), flush=True)
                process.join()
                os._exit(0)
            os.waitpid(pid, 0)
            second()
    """
    done = program(source, name="family.py").ok()
    assert done.out.strip() == "cuda:0"
    grandchild, child = done.report
    assert (grandchild["fork"]["line"], grandchild["maker"], grandchild["tier"]) == (done.line("# first"), "os.fork", "initialised")
    assert ("family.py", done.line("# second")) in _frames(grandchild["fork"])
    assert grandchild["origin"]["line"] == done.line("# init")
    assert _frames(grandchild["touch"])[-1] == ("family.py", done.line("# touch")) or ("family.py", done.line("# touch")) in _frames(
        grandchild["touch"]
    )
    assert child["fork"]["line"] == done.line("# second")
    assert child["ppid"] != grandchild["ppid"]
    assert "Cuda" not in done.err


def test_switched_on_late_it_says_so(program: Program) -> None:
    """Where CUDA was up before the guard came on, the origin is null and the text tells where the guard came on."""
    source = (
        CLASSIC
        + """
    start()
    import cudaguard  # late
    error = caught(DataLoader(Squares(), num_workers=1, multiprocessing_context="fork", timeout=20))
    print(json.dumps([cudaguard.origin(), cudaguard.fork_safe(), error.finding, str(error)]))
    """
    )
    # The devices are there from the start, the guard is not.
    early = "    import torch, cudaguard\n    cudaguard.disable()\n"
    done = program(early + source.replace("import cudaguard  # late", "cudaguard.enable()  # late"), mode=None)
    origin, safe, finding, text = done.json()
    assert (origin, safe) == (None, False)
    assert finding["origin"] is None
    assert finding["tier"] == "initialised"
    assert (finding["fork"]["line"], finding["touch"]["line"]) == (done.line("# fork"), done.line("# touch"))
    assert f"cudaguard came on later, at program.py:{done.line('# late')}; import it first" in text


def test_tiers_and_fork_safety(program: Program) -> None:
    """`is_available()` is enough to spoil a later fork, and is told from a real start; before it a fork is safe."""
    source = """
        import json, os, cudaguard, torch
        def child():
            reader, writer = os.pipe()
            pid = os.fork()  # fork
            if pid == 0:
                try:
                    torch.ones(1).cuda()
                    said = None
                except RuntimeError as error:
                    said = [error.finding["tier"], error.finding["origin"]["line"], error.finding["origin"]["call"], cudaguard.fork_safe()]
                os.write(writer, json.dumps(said).encode())
                os._exit(0)
            os.waitpid(pid, 0)
            return json.loads(os.read(reader, 9999))

        seen = [cudaguard.fork_safe(), cudaguard.origin(), child(), cudaguard.fork_safe()]
        torch.cuda.is_available()  # query
        seen += [cudaguard.fork_safe(), child()]
        torch.cuda.init()  # init
        seen += [cudaguard.fork_safe(), child()]
        print(json.dumps(seen))
    """
    done = program(source)
    query = done.line("# query")
    assert done.json() == [
        True, None, None, True,
        False, ["queried", query, "torch.cuda.is_available", False],
        False, ["initialised", query, "torch.cuda.is_available", False],
    ]  # fmt: skip


@pytest.mark.gpu
def test_the_classic_case_on_a_real_gpu(tmp_path: Path) -> None:
    """The same lines, error and report with real CUDA; a spawned loader works."""
    source = (
        CLASSIC
        + """
    if __name__ == "__main__":
        start()
        error = caught(DataLoader(Squares(), num_workers=2, multiprocessing_context="fork", timeout=60))
        count = sum(len(batch) for batch in DataLoader(Squares(), num_workers=1, multiprocessing_context="spawn", timeout=100))
        print(json.dumps([type(error).__name__, error.finding, count]))
    """
    )
    visible = {"CUDA_VISIBLE_DEVICES": None}
    done: Run = run(tmp_path, source, simulate=None, env=visible)
    kind, finding, count = done.json()
    assert (kind, count) == ("CudaForkError", 4)
    assert (finding["simulated"], finding["tier"], finding["slug"]) == (False, "initialised", "fork-after-init")
    lines: Callable[[str], int] = done.line
    assert [finding[name]["line"] for name in ("origin", "fork", "touch")] == [lines("# init"), lines("# fork"), lines("# touch")]
