"""`trace`: the story names the right lines, however the program ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from command_line import environment

SIMULATED = {"CUDAGUARD_SIMULATE": "1"}
TRAIN = """\
import torch
from torch.utils.data import DataLoader

class Data:
    def __len__(self): return 2
    def __getitem__(self, i):
        return torch.ones(1).cuda()

def main():
    device = torch.cuda.is_available()
    model = torch.nn.Linear(1, 1).cuda()
    for batch in DataLoader(Data(), num_workers=2, multiprocessing_context="fork"):
        pass

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def train(write):
    return write("train.py", TRAIN)


def test_the_story_of_a_broken_loader(cudaguard, train):
    told = cudaguard("trace", "train.py", env=SIMULATED)
    assert told.returncode == 1
    before, _, story = told.stderr.partition("cudaguard trace: train.py\n")
    assert "Traceback" in before  # the program's own end comes first
    first, order = story.split("What happened, in order (seconds since the start)\n")
    assert "train.py:10, in main  (process " in first
    assert "by way of\n      train.py:16  main()\n      train.py:10  device = torch.cuda.is_available()\n" in first
    assert "The call: torch.cuda.is_available\n" in first
    assert first.rstrip().endswith("later torch initialised CUDA.")
    labels = [line.split()[1:3] for line in order.splitlines() if line[:9].strip().replace(".", "").isdigit()]
    assert labels[:3] == [["queried", "train.py:10,"], ["initialised", "train.py:11,"], ["forked", "train.py:12,"]]
    assert {tuple(label) for label in labels[3:]} == {("touched", "train.py:7,")}
    assert "makes 2 DataLoader workers" in order
    assert "not safe: CUDA was up (initialised) in the process that was copied; " in order
    assert "[fork-after-init] error: Cannot re-initialize CUDA" in order
    assert "The program ended with exit code 1 after " in order
    assert "torch/nn/modules" not in story


def test_all_shows_the_frames_of_torch_too(cudaguard, train):
    assert (
        f"torch{os.sep}nn{os.sep}modules{os.sep}module.py"
        in cudaguard("trace", "--all", "train.py", env=SIMULATED).stderr.partition("cudaguard trace")[2]
    )


def test_json_is_the_last_line_of_stdout(cudaguard, write, tmp_path):
    write("train.py", TRAIN.replace("pass", "print('a batch')").replace("torch.ones(1).cuda()", "torch.ones(1)"))
    result = cudaguard("trace", "--json", "--trace", "out.json", "train.py", env=SIMULATED)
    assert (result.returncode, result.stderr) == (0, "")
    *own, last = result.stdout.splitlines()
    assert own == ["a batch"] * 2
    told = json.loads(last)
    assert (told["program"], told["exit"], told["tier"], told["findings"]) == (["train.py"], 0, "initialised", [])
    assert told["first"] == told["steps"][0]
    assert [(step["tier"], step["site"]["line"]) for step in told["steps"]] == [("queried", 10), ("initialised", 11)]
    own_frames = [frame for frame in told["first"]["site"]["stack"] if frame["file"] == told["first"]["site"]["file"]]
    assert [frame["line"] for frame in own_frames] == [16, 10]
    assert [(child["method"], child["maker"], child["safe"], child["site"]["line"]) for child in told["children"]] == [
        ("fork", "dataloader", False, 12)
    ] * 2
    assert (tmp_path / "out.json").read_text().startswith('[{"')


def test_an_import_is_followed_to_the_line_that_asks(cudaguard, write):
    write("deep/__init__.py", "from .gpu import HAS\n")
    write("deep/gpu.py", "import torch\n\nHAS = torch.cuda.is_available()\n")
    told = cudaguard("trace", "-c", "import deep", env=SIMULATED)
    assert told.returncode == 0
    chain = told.stderr.partition("by way of\n")[2].splitlines()[:3]
    assert [line.split(maxsplit=1) for line in chain] == [
        ["<string>:1", "import deep"],
        [f"deep{os.sep}__init__.py:1", "from .gpu import HAS"],
        [f"deep{os.sep}gpu.py:3", "HAS = torch.cuda.is_available()"],
    ]


def test_a_harmless_import_is_acquitted(cudaguard):
    told = cudaguard("trace", "-c", "import torch", env=SIMULATED)
    assert "Nobody initialised CUDA, and nobody asked for it." in told.stderr
    assert "What happened" not in told.stderr


def test_what_a_child_does_first_is_the_childs(cudaguard, write):
    write(
        "pool.py",
        """
        import multiprocessing
        def work(i):
            import torch
            return float(torch.ones(1).cuda())
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(work, [1]))
        """,
    )
    told = cudaguard("trace", "--json", "pool.py", env={**SIMULATED, "CUDAGUARD": "error"})
    story = json.loads(told.stdout.splitlines()[-1])
    assert (story["first"]["site"]["line"], story["first"]["role"]) == (5, "multiprocessing.Pool SpawnPoolWorker-1, spawned")
    assert told.stdout.splitlines()[0] == "[1.0]"


@pytest.mark.parametrize(
    ("code", "ended"),
    [("import os; os._exit(9)", 9), ("1 / 0", 1), ("raise SystemExit(7)", 7), ("raise KeyboardInterrupt", -signal.SIGINT)],
)
def test_the_story_is_told_however_the_program_ends(cudaguard, code, ended):
    told = cudaguard("trace", "-c", code)
    assert told.returncode == ended
    assert "Nobody initialised CUDA" in told.stderr
    how = f"ended with exit code {ended}" if ended >= 0 else f"was ended by signal {-ended}"
    assert f"The program {how} after " in told.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_program_and_the_story_is_told(write, tmp_path, number):
    write("wait.py", "import time\nprint('ready', flush=True)\ntime.sleep(200)\n")
    command = [sys.executable, "-m", "cudaguard", "trace", "wait.py"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), start_new_session=True, **pipes)
    assert process.stdout.readline() == "ready\n"
    began = time.monotonic()
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - began < 60
    assert process.returncode == -number
    assert f"The program was ended by signal {number.value} after " in said
    assert ("KeyboardInterrupt" in said) == (number == signal.SIGINT)


def test_off_wins_and_is_said(cudaguard):
    told = cudaguard("trace", "-c", "print('ran')", env={"CUDAGUARD": "off"})
    assert (told.returncode, told.stdout) == (0, "ran\n")
    assert told.stderr == "cudaguard: nothing was watched: CUDAGUARD=off is set\n"


@pytest.mark.parametrize("words", [(), ("nothing.py",), ("-c",), ("--nonsense", "-c", "pass")])
def test_a_command_line_that_is_wrong_is_one_line(cudaguard, words):
    result = cudaguard("trace", *words)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("cudaguard: ")


def test_a_fork_server_that_was_spoilt_by_its_preload_is_named(cudaguard, write):
    write("warm.py", "import torch\nREADY = torch.cuda.is_available()\n")
    write(
        "server.py",
        """
        import multiprocessing, torch
        def work(): pass
        if __name__ == "__main__":
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["warm"])
            process = context.Process(target=work)
            process.start(); process.join()
        """,
    )
    told = cudaguard("trace", "--json", "server.py", env={**SIMULATED, "CUDAGUARD": "error"})
    story = json.loads(told.stdout.splitlines()[-1])
    assert (story["first"]["role"], os.path.basename(story["first"]["site"]["file"])) == ("fork server", "warm.py")
    assert [(child["method"], child["safe"], child["site"]["line"]) for child in story["children"]] == [("forkserver", False, 8)]
