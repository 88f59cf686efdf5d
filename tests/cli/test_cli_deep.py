"""`trace --deep`: the very line is named where no hook sees CUDA wake. The stand-in flips the driver as a C library would."""

from __future__ import annotations

import json
import os
import sys

import pytest
from command_line import ROOT

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


LIBRARY = {
    "standin.py": STANDIN,
    "site-packages/lib/__init__.py": "import lib.plain\nfrom lib import inner\n",
    "site-packages/lib/plain.py": "def call(function):\n    return function()\n",
    "site-packages/lib/other.py": "",
    "site-packages/lib/one.py": "import standin\nONE = standin.wake()\n",
    "site-packages/lib/before.py": "import standin\nONE = int(1)\ntry:\n    import lib.other\n    TWO = standin.wake()\nfinally:\n    TWO = None\n",
}
BODIES = {  # what wakes the driver -> the body of lib/inner.py, and the line
    "its own line": ("import standin\nONE = int(1)\ntry:\n    TWO = standin.wake()\nexcept ImportError:\n    pass\nTHREE = int(3)\n", 4),
    "the last line": ("import standin\nONE = int(1)\nTWO = standin.wake()\n", 3),
    "a class body": ("import standin\nONE = int(1)\nclass Two:\n    x = int(2)\n    y = standin.wake()\n    z = int(3)\n", 5),
    "a function of the module": ("import standin\nONE = int(1)\ndef f():\n    standin.wake()\n    return 1\nTWO = f()\nTHREE = int(3)\n", 6),
    "a function that imports afterwards": (
        "import standin\nONE = int(1)\ndef f():\n    standin.wake()\n    import lib.one\nTWO = f()\nTHREE = int(3)\n",
        6,
    ),
    "a function of another module": ("import standin, lib.plain\nONE = int(1)\nTWO = lib.plain.call(standin.wake)\nTHREE = int(3)\n", 3),
    "a body that fails": ("import standin\nONE = int(1)\ntry:\n    standin.wake(); 1 / 0\nexcept ZeroDivisionError:\n    TWO = int(2)\n", 4),
}


@pytest.fixture
def traced(cudaguard, write, tmp_path):
    """Trace a program with a library in a site-packages of its own; gives the story as JSON, or as text."""

    def tell(*words, body=None, text=False, **env):
        for name, source in {**LIBRARY, **({"site-packages/lib/inner.py": body} if body else {})}.items():
            write(name, source)
        path = os.pathsep.join((ROOT, str(tmp_path / "site-packages"), str(tmp_path)))
        result = cudaguard("trace", *([] if text else ["--json"]), *words, env={"PYTHONPATH": path, **env})
        assert result.returncode == 0, result.stderr
        return result.stderr if text else json.loads(result.stdout.splitlines()[-1])

    return tell


@pytest.mark.parametrize("what", BODIES)
def test_of_an_import_alone_the_line_of_the_library_s_module_is_told(traced, what):
    body, line = BODIES[what]
    first = traced("-c", "import lib", body=body)["first"]
    assert (first["site"]["file"], first["site"]["line"], first["between"]) == ("<string>", 1, [])
    at = first["at"]
    assert (at["line"], at["module"], at["package"], at["exact"]) == (line, "lib.inner", "lib", True)
    assert at["code"] == body.splitlines()[line - 1].strip()
    last = first["site"]["stack"][-1]
    assert (os.path.basename(last["file"]), last["line"]) == ("inner.py", line)


@pytest.mark.parametrize(("call", "tier"), [("torch.__config__.show", "driver"), ("torch.cuda.is_available", "queried")])
@pytest.mark.parametrize("way", ["import", "script", "deep"])
def test_what_a_hook_sees_in_a_library_is_exact_in_any_case(traced, write, call, tier, way):
    write("program.py", "import lib\n")
    words = {"import": ("-c", "import lib"), "script": ("program.py",), "deep": ("--deep", "program.py")}[way]
    body = f"import torch\nONE = int(1)\ntry:\n    TWO = 'USE_MKL=OFF' in str({call}())\nexcept ImportError:\n    TWO = bool(1)\n"
    first = traced(*words, body=body, CUDAGUARD_SIMULATE="2")["first"]
    assert (first["tier"], first["call"], first["site"]["line"], first["between"]) == (tier, call, 1, [])
    assert (first["at"]["line"], first["at"]["module"], first["at"]["exact"]) == (4, "lib.inner", True)


def test_a_hook_that_comes_too_late_does_not_hide_the_line(traced):
    """In the function no line is asked about, and `is_available()` finds CUDA up: the line that called the function is known all the same."""
    body = "import standin, torch\nONE = int(1)\ndef f():\n    standin.wake()\n    return torch.cuda.is_available()\nTWO = f()\n"
    first = traced("-c", "import lib", body=body)["first"]
    assert (first["between"], first["at"]["line"], first["at"]["module"], first["at"]["exact"], first["call"]) == ([], 6, "lib.inner", True, "f")


def test_with_deep_the_line_in_the_function_is_told(traced):
    at = traced("--deep", "-c", "import lib", body=BODIES["a function of the module"][0])["first"]["at"]
    assert (at["line"], at["function"]) == (4, "f")


def test_the_story_names_module_and_package(traced):
    told = traced("-c", "import lib", body=BODIES["its own line"][0], text=True)
    chain = told.partition("by way of\n")[2].splitlines()[:3]
    assert [line.split()[0].rpartition(os.sep)[2] for line in chain] == ["<string>:1", "__init__.py:2", "inner.py:4"]
    assert "The line: line 4 of module lib.inner in package lib\n  The call: standin.wake\n" in told
    asked = told.splitlines()[-1]
    assert asked.startswith("The driver was asked at ")
    assert asked.endswith(" lines of modules that were imported.")


@pytest.mark.parametrize("code", ["import lib; x = 1", "import lib.plain as p\nprint(p)", "pass", "'import lib'"])
def test_what_does_more_than_import_is_not_asked_about(traced, code):
    told = traced("-c", code, body="NOTHING = 1\n", text=True)
    assert "was asked" not in told


@pytest.mark.parametrize("code", ["import json", "import json, os", "from json import loads; import os", "import json\nimport os"])
def test_what_only_imports_is(traced, code):
    assert "was asked" in traced("-c", code, text=True)


def test_a_script_without_deep_is_told_to_add_it(traced, write):
    write("program.py", "import standin\nimport lib\n")
    told = traced("program.py", body=BODIES["its own line"][0], text=True)
    assert "program.py:2  (process " in told
    assert "  The line: one of the lines 2, 4, 7 of module lib.inner in package lib. Add --deep to find it.\n" in told


@pytest.mark.parametrize(("module", "line"), [("one", 2), ("before", 5)])
def test_in_a_script_the_one_line_of_a_library_s_body_that_can_be_meant_ends_the_chain(traced, write, module, line):
    write("program.py", f"import standin\nimport lib.{module}\n")
    first = traced("program.py", body="NOTHING = 1\n")["first"]
    assert (os.path.basename(first["site"]["file"]), first["site"]["line"], first["call"]) == ("program.py", 2, f"import lib.{module}")
    last = first["site"]["stack"][-1]
    assert (os.path.basename(last["file"]), last["line"]) == (f"{module}.py", line)
    assert (first["at"]["line"], first["at"]["exact"], first["at"]["candidates"]) == (line, False, [line])
    told = traced("program.py", body="NOTHING = 1\n", text=True)
    assert f"The line: probably line {line}, the only one that calls anything, of module lib.{module} in package lib. Add --deep" in told
