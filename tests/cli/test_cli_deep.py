"""`trace --deep`: the very line is named where no hook sees CUDA wake. The stand-in flips the driver as a C library would."""

from __future__ import annotations

import json
import sys

import pytest

STANDIN = """\
import functools
from cudaguard import _driver

_up = []
_driver.pretend(lambda: bool(_up))
wake = functools.partial(_up.append, 1)  # C code: it leaves no frame
"""
PROGRAM = """\
import os
import standin

def helper(n):
    for i in range(n):
        pass

def main():
    helper(3)
    x = helper(2); standin.wake(); y = helper(2)
    helper(3)

main()
if os.fork() == 0:
    os._exit(0)
os.wait()
"""


@pytest.fixture
def story(cudaguard, write):
    def tell(source, *flags):
        write("standin.py", STANDIN)
        write("program.py", source)
        result = cudaguard("trace", "--json", *flags, "program.py")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1])

    return tell


def test_without_it_the_line_is_only_bracketed(story):
    first = story(PROGRAM)["first"]
    assert [site["line"] for site in first["between"]] == [2, 14]


def test_without_it_the_end_of_the_program_is_the_last_chance_to_see_it(story):
    first = story("import standin\nstandin.wake()\n")["first"]
    assert [(site["line"], site["file"].endswith("program.py")) for site in first["between"]] == [(1, True), (0, False)]


def test_the_line_is_found_and_the_calls_that_led_to_it(story):
    first = story(PROGRAM, "--deep")["first"]
    assert (first["tier"], first["between"], first["site"]["line"], first["site"]["function"]) == ("driver", [], 10, "main")
    own = [frame["line"] for frame in first["site"]["stack"] if frame["file"] == first["site"]["file"]]
    assert own == [13, 10]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import standin\nstandin.wake()\nx = 1\n", 2),
        ("import standin\nx = [standin.wake() for _ in range(1)]\nx = 1\n", 2),
        ("import standin\ndef f():\n    standin.wake()\nf()\nx = 1\n", 3),
        ("import standin\ndef g():\n    yield 1\n    standin.wake()\n    yield 2\nfor _ in g():\n    pass\n", 4),
        ("import standin\ndef f():\n    standin.wake(); 1 / 0\ntry:\n    f()\nexcept ZeroDivisionError:\n    pass\n", 3),
        ("import functools, standin\nfunctools.reduce(lambda a, b: b, [1, 2])\nfunctools.reduce(lambda a, b: standin.wake(), [1, 2])\nx = 1\n", 3),
        ("import standin, threading\ndef f():\n    x = 1\n    standin.wake()\nt = threading.Thread(target=f)\nt.start(); t.join()\nx = 1\n", 4),
        ("import json, standin\njson.loads('[1]', object_hook=None, parse_int=lambda text: standin.wake())\nx = 1\n", 2),
    ],
    ids=["module", "comprehension", "function", "generator", "raising", "called back", "thread", "below the standard library"],
)
def test_it_is_found_wherever_it_is(story, source, line):
    first = story(source, "--deep")["first"]
    assert first["site"]["line"] == line
    assert first["site"]["file"].endswith("program.py")
    assert first["between"] == []


def test_what_a_hook_sees_is_told_by_the_hook(cudaguard, write):
    write("program.py", "import torch\nx = torch.cuda.is_available()\ny = torch.ones(1).cuda()\n")
    result = cudaguard("trace", "--json", "--deep", "program.py", env={"CUDAGUARD_SIMULATE": "1"})
    steps = json.loads(result.stdout.splitlines()[-1])["steps"]
    assert [(step["tier"], step["call"], step["site"]["line"]) for step in steps] == [
        ("queried", "torch.cuda.is_available", 2),
        ("initialised", "torch.Tensor.cuda", 3),
    ]


def test_its_cost_is_printed(cudaguard, write):
    write("program.py", "for i in range(50000):\n    pass\n")
    told = cudaguard("trace", "--deep", "program.py").stderr.splitlines()[-1].split()
    assert told[:6] == ["--deep", "asked", "the", "driver", "at", told[5]]
    assert int(told[5].replace(",", "")) >= 50000
    assert 0 < float(told[-2]) < 10


@pytest.mark.skipif(hasattr(sys, "monitoring"), reason="sys.monitoring lets tracers be")
def test_another_tracer_goes_on_instead(write, python):
    write("program.py", "import sys\nprint(sys.gettrace() is not None)\n")
    words = ["run", "--mode", "record", "--trace", "out", "program.py"]
    code = f"import sys; sys.settrace(lambda *a: None); from cudaguard._cli import main; main({words})"
    result = python("-c", code, env={"_CUDAGUARD_DEEP": "1"})
    assert result.stdout == "True\n"
    assert "another tracer is at work" in result.stderr
