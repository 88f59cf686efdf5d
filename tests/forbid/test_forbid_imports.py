"""`CUDAGUARD_FORBID=import`: no import of a program may initialise CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from guarded import Program

IMPORT = {"CUDAGUARD_FORBID": "import"}


def test_an_import_that_asks_raises_at_its_line(program: Program, tmp_path: Path) -> None:
    """Without a word in the program, the module's line raises, and the text names the chain of imports."""
    (tmp_path / "asking.py").write_text("import torch\nGPU = torch.cuda.is_available()\n")
    run = program("import asking\n", mode=None, env=IMPORT)
    assert run.code == 1
    (finding,) = run.report
    assert (finding["slug"], Path(finding["touch"]["file"]).name, finding["touch"]["line"]) == ("forbidden-init", "asking.py", 2)
    assert "program.py:1 -> asking.py:2" in run.err
    assert "CUDAGUARD_FORBID=import forbids that while a module is being imported" in run.err


def test_after_the_imports_everything_is_allowed(program: Program, tmp_path: Path) -> None:
    """A function of an imported module may use CUDA when it is called, and the script itself is no import."""
    (tmp_path / "late.py").write_text("import torch\ndef go():\n    return torch.ones(1).cuda()\n")
    run = program("import late, torch\nlate.go()\ntorch.cuda.is_available()\nprint('done')\n", mode=None, env=IMPORT)
    assert run.ok().out == "done\n"
    assert run.slugs() == []


def test_an_import_that_wakes_the_driver_in_c_raises_when_its_body_ends(program: Program, tmp_path: Path) -> None:
    """What no hook sees is told of the module whose body did it, and of the line where only one can be meant."""
    (tmp_path / "waking.py").write_text("import torch\n\nANSWER = 42\nGENERATOR = torch.Generator(device='cuda')\n\n\ndef f():\n    return f()\n")
    run = program("import waking\n", mode=None, env=IMPORT)
    assert run.code == 1
    (finding,) = [finding for finding in run.report if finding["slug"] == "forbidden-init"]
    assert (Path(finding["origin"]["file"]).name, finding["origin"]["line"], finding["tier"]) == ("waking.py", 4, "driver")


@pytest.mark.parametrize("value", ["imports", "1"])
def test_another_value_is_one_line_that_names_the_legal_ones(program: Program, value: str) -> None:
    """A wrong value forbids nothing, stops nothing, and says once what is legal."""
    run = program("import torch\nprint(torch.cuda.is_available())\n", mode=None, simulate=None, env={"CUDAGUARD_FORBID": value}).ok()
    assert run.out == "False\n"
    assert run.err == f"cudaguard: CUDAGUARD_FORBID {value!r} is not known; legal: import; the guard stays off\n"
