"""The Chrome trace: right in its format, whole with many processes, and no burden when off."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import pytest
from command_line import environment
from trace_format import check, lanes, named, read

LOADERS = """\
import os, sys, torch
from torch.utils.data import DataLoader
class Data:
    def __init__(self, touch): self.touch = touch
    def __len__(self): return 2
    def __getitem__(self, i): return torch.ones(1).cuda() if self.touch else torch.ones(1)
if __name__ == "__main__":
    torch.cuda.is_available()
    for method in ("fork", "spawn", "forkserver"):
        for batch in DataLoader(Data(False), num_workers=2, multiprocessing_context=method): pass
    torch.ones(1).cuda()
    for batch in DataLoader(Data(True), num_workers=1, multiprocessing_context="fork"): pass
"""
SIMULATED = {"CUDAGUARD_SIMULATE": "1"}


def test_loaders_of_every_start_method(cudaguard, write, tmp_path):
    write("train.py", LOADERS)
    result = cudaguard("run", "--trace", "trace.json", "train.py", env=SIMULATED)
    assert "CudaForkError" in result.stderr
    events = check(tmp_path / "trace.json")
    roles = sorted(re.sub(r" \(train\.py, \d+\)$", "", name) for name in lanes(events).values())
    pairs = [f"DataLoader worker {i} of 2, {how}" for how in ("forked", "made by the fork server", "spawned") for i in (0, 1)]
    assert roles == sorted([*pairs, "DataLoader worker 0 of 1, forked", "main process"])
    assert all(f", {pid})" in name for pid, name in lanes(events).items())


def test_marks_say_what_and_where(cudaguard, write, tmp_path):
    script = write("train.py", LOADERS)
    cudaguard("run", "--trace", "trace.json", "train.py", env=SIMULATED)
    events = check(tmp_path / "trace.json")
    queried, initialised, found = (named(events, name) for name in ("CUDA queried", "CUDA initialised", "fork-after-init"))
    assert [mark["args"]["line"] for mark in (*queried, *initialised)] == [8, 11]
    assert len(found) == 1
    facts = found[0]["args"]
    assert (facts["file"], facts["line"], facts["function"]) == (str(script), 6, "__getitem__")
    assert facts["code"] == "def __getitem__(self, i): return torch.ones(1).cuda() if self.touch else torch.ones(1)"
    assert (facts["origin"], facts["fork"]) == (f"{script}:8", f"{script}:12")
    assert facts["severity"] == "error"
    assert lanes(events)[found[0]["pid"]].startswith("DataLoader worker 0 of 1, forked (train.py, ")
    assert [slice_["args"]["child may use CUDA"] for slice_ in events if slice_["name"] in ("fork", "spawn", "forkserver")] == [False] * 2 + [
        True
    ] * 4 + [False]


def test_every_process_of_a_tree_is_in_it(cudaguard, write, tmp_path):
    write(
        "tree.py",
        """
        import os, subprocess, sys, torch, multiprocessing
        def child(depth):
            pid = os.fork()
            if pid == 0:
                if depth: child(depth - 1)
                os._exit(0)
            os.waitpid(pid, 0)
        def nothing(): pass
        if __name__ == "__main__":
            child(2)
            process = multiprocessing.get_context("fork").Process(target=nothing, name="mine")
            process.start(); process.join()
            subprocess.run([sys.executable, "-c", "import cudaguard, torch"], check=True)
        """,
    )
    result = cudaguard("run", "--trace", "trace.json", "tree.py")
    assert result.returncode == 0, result.stderr
    events = check(tmp_path / "trace.json")
    roles = sorted(re.sub(r", \d+\)$", ")", name) for name in lanes(events).values())
    family = ["multiprocessing.Process mine, forked", *["os.fork child, forked"] * 3]
    assert roles == ["main process (-c)", "main process (tree.py)", *(f"{role} (tree.py)" for role in family)]
    parents = {event["pid"]: event["args"]["parent"] for event in named(events, "forked")}
    depths = {pid: sum(1 for _ in _ancestors(pid, parents)) for pid in parents}
    assert sorted(depths.values()) == [1, 1, 2, 3]


def _ancestors(pid, parents):
    while pid in parents:
        pid = parents[pid]
        yield pid


def test_twenty_processes_at_once_tear_no_line(cudaguard, write, tmp_path):
    write(
        "many.py",
        """
        import os, torch
        for _ in range(20):
            if os.fork() == 0:
                for _ in range(20):
                    if os.fork() == 0: os._exit(0)
                    os.wait()
                os._exit(0)
        for _ in range(20): os.wait()
        """,
    )
    assert cudaguard("run", "--trace", "trace.json", "many.py").stderr == ""
    events = check(tmp_path / "trace.json")
    assert len(lanes(events)) == 421
    assert len(named(events, "fork")) == len(named(events, "forked")) == 420


def test_processes_that_begin_a_file_at_once_give_it_one_beginning(write, tmp_path):
    """They are no family: each finds the file missing, empty or begun. Many files, because the moment is short."""
    write(
        "begin.py",
        """
        import json, sys, time
        import cudaguard
        from cudaguard import _config, _respond, _trace
        cudaguard.enable("error")
        start = float(input())
        for turn in range(400):
            _config.use(_config.current()._replace(trace=f"{turn}.json"))
            while time.monotonic() < start + turn * 0.003: pass
            _trace.started()
        """,
    )
    command = [sys.executable, "begin.py"]
    running = [subprocess.Popen(command, cwd=tmp_path, env=environment(), stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    start = f"{time.monotonic() + 2}\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write(start)
        process.stdin.flush()
    assert [process.communicate(timeout=120)[1] for process in running] == [""] * 4
    assert [len(lanes(check(tmp_path / f"{turn}.json"))) for turn in range(400)] == [4] * 400


def test_a_process_that_is_killed_leaves_a_readable_file(cudaguard, write, tmp_path):
    write("killed.py", "import os, torch\nif os.fork() == 0: os._exit(0)\nos.wait()\nos.kill(os.getpid(), 9)\n")
    assert cudaguard("run", "--trace", "trace.json", "killed.py").returncode == -9
    assert len(named(check(tmp_path / "trace.json"), "forked")) == 1


def test_a_second_run_goes_on_in_the_same_file(cudaguard, write, tmp_path):
    write("one.py", "import torch\n")
    (tmp_path / "trace.json").write_text("")  # as tempfile leaves it
    for _ in range(2):
        assert cudaguard("run", "--trace", "trace.json", "one.py").stderr == ""
    assert len(lanes(check(tmp_path / "trace.json"))) == 2


@pytest.mark.parametrize("content", ["print('my script')\n", '[{"ph": "M"}]\n'])
def test_a_file_that_is_no_open_trace_is_left_alone(cudaguard, write, tmp_path, content):
    (tmp_path / "mine").write_text(content)
    result = cudaguard("run", "--trace", "mine", "-c", "import torch; print('ran')")
    assert (result.returncode, result.stdout) == (0, "ran\n")
    assert result.stderr == f"cudaguard: cannot write the trace {tmp_path / 'mine'}: it holds something else than a trace that can go on\n"
    assert (tmp_path / "mine").read_text() == content


def test_a_path_that_cannot_be_written_is_one_line_for_all_processes(cudaguard, write, tmp_path):
    write("train.py", LOADERS)
    trace = str(tmp_path / "no such folder" / "trace.json")
    traced = cudaguard("run", "train.py", env={**SIMULATED, "CUDAGUARD_TRACE": trace})
    lines = [line for line in traced.stderr.splitlines() if line.startswith("cudaguard: ")]
    assert lines == [f"cudaguard: cannot write the trace {trace}: No such file or directory"]
    assert traced.returncode == 1
    assert "CudaForkError" in traced.stderr  # the guard itself goes on


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_line(cudaguard):
    result = cudaguard("run", "--trace", "/dev/full", "-c", "import torch; print('ran')")
    assert (result.returncode, result.stdout) == (0, "ran\n")
    assert result.stderr == "cudaguard: cannot write the trace /dev/full: No space left on device\n"


def test_names_and_code_of_any_script_are_json(cudaguard, write, tmp_path):
    name = 'e\u0301t\u00e9 "1".py'
    write(name, 'import os, torch\n\nif os.fork() == 0: os._exit(0)  # \u00e9 \U0001f600 "\\\nos.wait()\n')
    assert cudaguard("run", "--trace", "trace.json", name, env={"PYTHONUTF8": "1"}).returncode == 0
    events = check(tmp_path / "trace.json")
    assert named(events, "fork")[0]["args"]["code"].endswith('# \u00e9 \U0001f600 "\\')
    assert set(map(str.isascii, (tmp_path / "trace.json").read_text("utf-8").splitlines())) == {True}
    assert any(f"({name}, " in lane for lane in lanes(events).values())


def test_without_a_trace_nothing_is_written_or_loaded(cudaguard, write, tmp_path):
    write(
        "plain.py",
        """
        import sys
        before = set(sys.modules)
        from cudaguard import _trace
        _trace.started()
        assert _trace.depart("fork", None) is None
        print(sorted(set(sys.modules) - before))
        """,
    )
    result = cudaguard("plain.py")
    assert eval(result.stdout) in ([], ["cudaguard._trace"])
    assert [path.name for path in tmp_path.iterdir()] == ["plain.py"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "tell"),
        ('[{"name": "a"}', "torn"),
        ('[{"name": "a"}\n', "ph"),
        ('[{"name": "x", "cat": "c", "ph": "i", "s": "t", "ts": 1, "pid": 1, "tid": 1}\n', "process_name|'x'"),
    ],
)
def test_the_checker_itself_finds_what_is_wrong(tmp_path, text, wrong):
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(AssertionError, match=wrong):
        check(tmp_path / "trace.json")


def test_the_checker_finds_arrows_without_an_end(tmp_path):
    lane = '[{"name": "process_name", "cat": "c", "ph": "M", "ts": 1, "pid": 1, "tid": 1, "args": {"name": "a"}}\n'
    slice_ = ',{"name": "fork", "cat": "c", "ph": "X", "ts": 1, "dur": 3, "pid": 1, "tid": 1}\n'
    arrow = ',{"name": "child", "cat": "c", "ph": "s", "ts": 2, "pid": 1, "tid": 1, "id": 5}\n'
    (tmp_path / "trace.json").write_text(lane + slice_ + arrow)
    assert len(read(tmp_path / "trace.json")) == 3
    with pytest.raises(AssertionError):
        check(tmp_path / "trace.json")
    assert check(tmp_path / "trace.json", loose=1)


def test_the_line_of_a_module_of_torchs_that_is_imported(tmp_path):
    """torch.utils.cpp_extension asks for CUDA when it is imported, in a CUDA build: torch's line is the answer, not the import alone."""
    import torch

    from cudaguard._cli import lines

    home = os.path.dirname(torch.__file__)
    frame = {"file": os.path.join(home, "utils", "cpp_extension.py"), "line": 1, "function": "<module>"}
    asked = [{**frame, "line": 9, "function": "_find"}, {"file": os.path.join(home, "cuda", "__init__.py"), "line": 9, "function": "is_available"}]
    importer = {"file": str(tmp_path / "own.py"), "line": 3, "function": "<module>"}
    found = lines.innermost([importer, frame, *asked], "torch.cuda.is_available")
    assert (found.file, found.line, found.module, found.package, found.exact) == (frame["file"], 1, "torch.utils.cpp_extension", "torch", True)
    assert lines.innermost([importer, *asked[1:]], "torch.cuda.is_available").file == importer["file"]
