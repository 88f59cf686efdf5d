"""`check`: what would fail on a machine with a GPU is found, and nothing else; the exit code says which."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

TWO = """\
import torch, multiprocessing
from torch.utils.data import DataLoader

class Data:
    def __len__(self): return 40
    def __getitem__(self, i): return torch.ones(1).to("cuda")

class Plain(Data):
    def __getitem__(self, i): return torch.ones(1)

def work(x):
    return float(torch.ones(1).cuda())

if __name__ == "__main__":
    torch.ones(1).cuda()
    seen = 0
    for batch in DataLoader(Data(), num_workers=1): pass
    for batch in DataLoader(Plain(), num_workers=1):
        seen += 1
    print("batches", seen)
    with multiprocessing.Pool(1) as pool:
        pool.map(work, [1])
"""
GOOD = """\
import sys, torch
from torch.utils.data import DataLoader
if __name__ == "__main__":
    model = torch.nn.Linear(1, 1).cuda()
    count = sum(1 for _ in DataLoader(torch.ones(8, 1), num_workers=1))
    print("batches", count)
    {end}
"""


def test_everything_that_fails_is_found_in_one_go(cudaguard, write):
    write("two.py", TWO)
    result = cudaguard("check", "two.py")
    assert result.returncode == 1
    assert "batches 2\n" in result.stderr  # the program's own words; the loop over 40 ended after two batches
    assert result.stdout.startswith("cudaguard check: two.py, on simulated GPUs\n")
    assert result.stdout.count("[fork-after-init] error (start method fork)") == 2
    for place in ("woke CUDA   two.py:15", "forked      two.py:17\n", "two.py:6, in __getitem__", "forked      two.py:21\n", "two.py:12, in work"):
        assert place in result.stdout, place
    assert result.stdout.endswith("2 things would fail on a machine with a GPU.\n")


def test_the_start_method_matters_where_the_program_leaves_it_open(cudaguard, write):
    write("two.py", TWO)
    result = cudaguard("check", "--format", "json", "--start-methods", "spawn,fork", "two.py")
    told = json.loads(result.stdout)
    assert (result.returncode, told["verdict"], told["simulated"]) == (1, 1, True)
    assert [run["start_method"] for run in told["runs"]] == ["spawn", "fork"]
    assert told["runs"][0]["exit"] == 0
    grave = [(finding["touch"]["line"], finding["start_methods"]) for finding in told["findings"] if finding["severity"] == "error"]
    assert sorted(grave) == [(6, ["fork"]), (12, ["fork"])]


def test_the_programs_own_choice_of_a_start_method_stands(cudaguard, write):
    write("own.py", TWO.replace("    torch.ones(1).cuda()\n", "    multiprocessing.set_start_method('spawn')\n    torch.ones(1).cuda()\n"))
    assert cudaguard("check", "own.py").returncode == 0


def test_annotations_are_at_the_users_lines(cudaguard, write, tmp_path):
    write("pkg,1/two.py", TWO)
    result = cudaguard("check", "--format", "github", "pkg,1/two.py", env={"GITHUB_WORKSPACE": str(tmp_path)})
    assert result.returncode == 1
    *marks, last = result.stdout.splitlines()
    heads = [mark.split("::")[1] for mark in marks]
    assert heads == [f"error file=pkg%2C1/two.py,line={line},title=cudaguard%3A fork-after-init" for line in (6, 12)]
    assert all("%0A  forked      pkg,1/two.py:" in mark for mark in marks)
    assert last == "2 things would fail on a machine with a GPU."


@pytest.mark.parametrize(
    ("end", "code", "says", "counts"),
    [
        ("pass", 0, "Nothing would fail.", [2]),
        ("assert count == 8", 0, "Nothing would fail.", [2, 8]),  # it fails only because its loop was cut short: it is run whole
        ("sys.exit(4)", 3, "The program failed by itself", [2, 8]),
    ],
)
def test_a_good_program_passes_and_a_bad_one_is_not_blamed_on_cuda(cudaguard, write, end, code, says, counts):
    write("good.py", GOOD.format(end=end))
    result = cudaguard("check", "good.py")
    assert result.returncode == code, result.stdout + result.stderr
    assert says in result.stdout
    assert [int(line.split()[1]) for line in result.stderr.splitlines() if line.startswith("batches")] == counts


def test_steps_can_be_set(cudaguard, write):
    write("good.py", GOOD.format(end="pass"))
    assert "batches 5\n" in cudaguard("check", "--steps", "5", "good.py").stderr
    assert "batches 8\n" in cudaguard("check", "--steps", "0", "good.py").stderr


def test_what_does_not_end_is_stopped_with_its_children(cudaguard, write, tmp_path):
    write("hang.py", "import os, time\nif os.fork() == 0:\n    open('child', 'w').write(str(os.getpid()))\ntime.sleep(600)\n")
    result = cudaguard("check", "--timeout", "5", "hang.py")
    assert result.returncode == 3
    assert "did not end within 5 s, and was stopped" in result.stdout
    child = int((tmp_path / "child").read_text())
    with pytest.raises(ProcessLookupError):
        _alive(child)


def _alive(pid):
    """Raise ProcessLookupError if a process is gone, or only waits to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        raise ProcessLookupError from None
    if state in "ZX":
        raise ProcessLookupError


@pytest.mark.parametrize(
    "words",
    [(), ("nothing.py",), ("--steps", "many", "-c", "pass"), ("--start-methods", "vfork", "-c", "pass"), ("--format", "xml", "-c", "pass")],
)
def test_a_wrong_command_line_is_one_line(cudaguard, words):
    result = cudaguard("check", *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1


def test_off_wins(cudaguard):
    result = cudaguard("check", "-c", "pass", env={"CUDAGUARD": "off"})
    assert (result.returncode, result.stderr) == (2, "cudaguard: CUDAGUARD=off is set: nothing can be checked\n")
