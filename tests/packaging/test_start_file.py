"""What the start-up file does in new interpreters, for each value of the environment."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from cudaguard import _activate, _config
from environments import TOP, Environment

START = runpy.run_path(str(TOP / "cudaguard" / "_site" / "_cudaguard_start.py"))
SAY_IF_ON = "import sys; print('cudaguard' in sys.modules)"
FIRST_USE = f"{SAY_IF_ON}; import jax; {SAY_IF_ON}"


@pytest.fixture
def libraries(tmp_path: Path) -> str:
    """A folder with an empty package for each library that brings the guard in."""
    for name in START["TRIGGERS"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    return str(tmp_path)


@pytest.fixture
def broken(libraries: str) -> str:
    """The same, with a cudaguard that cannot be imported."""
    Path(libraries, "cudaguard.py").write_text("raise ImportError('two\\nlines')\n")
    return libraries


def test_names_are_those_of_the_package() -> None:
    """The start-up file cannot import the package to ask it, so they stand in both."""
    assert START["MODES"] == _config.MODES
    assert START["ALIASES"] == _config.SHORT
    assert START["TRIGGERS"] == _activate.LIBRARIES


@pytest.mark.parametrize("variables", [{}, {"CUDAGUARD": ""}, {"CUDAGUARD": "off"}, {"CUDAGUARD": "0"}, {"CUDAGUARD_SIMULATE": ""}])
def test_off_loads_one_module_and_no_more(wheeled: Environment, bare: Environment, variables: dict[str, str]) -> None:
    """Not tried in an editable install: the finder that setuptools puts there loads a good part of the standard library."""
    assert wheeled.modules(**variables) - bare.modules() == {"_cudaguard_start"}


@pytest.mark.parametrize("variables", [{}, {"CUDAGUARD": "off"}])
def test_off_stays_off_when_a_library_comes(installed: Environment, libraries: str, variables: dict[str, str]) -> None:
    got = installed.run(FIRST_USE, PYTHONPATH=libraries, **variables)
    assert (got.stdout.split(), got.stderr) == (["False", "False"], "")


def test_armed_loads_no_more_than_off(wheeled: Environment) -> None:
    assert wheeled.modules(CUDAGUARD="error") == wheeled.modules()


@pytest.mark.parametrize("mode", [*(mode for mode in START["MODES"] if mode != "off"), "1"])
def test_armed_brings_the_guard_in_with_the_first_library(installed: Environment, libraries: str, mode: str) -> None:
    got = installed.run(FIRST_USE, PYTHONPATH=libraries, CUDAGUARD=mode)
    assert (got.stdout.split(), got.returncode) == (["False", "True"], 0)


@pytest.mark.parametrize("library", START["TRIGGERS"])
def test_each_library_brings_the_guard_in(wheeled: Environment, libraries: str, library: str) -> None:
    assert "cudaguard" in wheeled.modules(f"import {library}", PYTHONPATH=libraries, CUDAGUARD="error")


def test_simulation_alone_brings_the_guard_in(wheeled: Environment, libraries: str) -> None:
    assert "cudaguard" in wheeled.modules("import jax", PYTHONPATH=libraries, CUDAGUARD_SIMULATE="2")


def test_simulation_is_brought_in_where_the_guard_is_off(wheeled: Environment, libraries: str) -> None:
    assert "cudaguard" in wheeled.modules("import jax", PYTHONPATH=libraries, CUDAGUARD_SIMULATE="2", CUDAGUARD="off")


def test_torch_itself_imports_under_the_guard(installed: Environment) -> None:
    got = installed.run(f"import torch; {SAY_IF_ON}; print(torch.ones(2).sum().item())", CUDAGUARD="error")
    assert (got.stdout.split(), got.stderr, got.returncode) == (["True", "2.0"], "", 0)


def test_finders_that_the_guard_adds_see_the_first_library(wheeled: Environment, libraries: str) -> None:
    """The import system is already past the place where a new finder goes when the guard is brought in."""
    Path(libraries, "cudaguard.py").write_text(
        "import sys\nclass Finder:\n    def find_spec(self, name, *_):\n        print('asked for', name)\nsys.meta_path.insert(0, Finder())\n"
    )
    assert wheeled.run("import jax", PYTHONPATH=libraries, CUDAGUARD="error").stdout.splitlines()[0] == "asked for jax"


def test_a_library_that_is_not_there_is_not_found_as_ever(wheeled: Environment, tmp_path: Path) -> None:
    code = "import importlib.util as u; print(u.find_spec('cupy'))\ntry: import cupy\nexcept ModuleNotFoundError as error: print(error)"
    got = wheeled.run(code, cwd=tmp_path, CUDAGUARD="error")
    assert (got.stdout.splitlines(), got.stderr) == (["None", "No module named 'cupy'"], "")


def test_wrong_value_is_said_in_one_line(installed: Environment, libraries: str) -> None:
    got = installed.run(FIRST_USE, PYTHONPATH=libraries, CUDAGUARD="eror")
    assert (got.stdout.split(), got.returncode) == (["False", "False"], 0)
    (line,) = got.stderr.splitlines()
    assert "'eror'" in line
    assert all(mode in line for mode in START["MODES"])


def test_wrong_value_is_not_said_again_by_children(wheeled: Environment) -> None:
    got = wheeled.run("import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1)'])", CUDAGUARD="eror")
    assert (got.stdout, len(got.stderr.splitlines())) == ("1\n", 1)


def test_wrong_value_is_said_once_when_the_program_imports_the_guard(wheeled: Environment) -> None:
    got = wheeled.run("import cudaguard; print(1)", CUDAGUARD="eror")
    assert (got.stdout, got.returncode, len(got.stderr.splitlines())) == ("1\n", 0, 1)


@pytest.mark.parametrize("flag", ["-I", "-E"])
@pytest.mark.parametrize("value", ["error", "eror"])
def test_isolated_python_ignores_the_variable(installed: Environment, flag: str, value: str) -> None:
    got = installed.run("import sys; print([type(finder).__name__ for finder in sys.meta_path])", flag, CUDAGUARD=value)
    assert got.stderr == ""
    assert START["Watcher"].__name__ not in got.stdout


def test_broken_guard_leaves_the_program_running(wheeled: Environment, broken: str) -> None:
    got = wheeled.run("import jax; print(jax.__name__)", PYTHONPATH=broken, CUDAGUARD="error")
    assert (got.stdout, got.returncode) == ("jax\n", 0)
    assert got.stderr.splitlines() == ["cudaguard: not active: ImportError('two\\nlines')"]


@pytest.mark.parametrize("method", ["spawn", "forkserver", "subprocess"])
def test_children_start_armed(wheeled: Environment, libraries: str, method: str) -> None:
    """By the environment alone: the parent has not imported the guard."""
    Path(libraries, "child.py").write_text(f"def main():\n    import jax; {SAY_IF_ON}\n")
    code = f"""
import child, multiprocessing, subprocess, sys
if {method!r} == "subprocess":
    subprocess.run([sys.executable, "-c", "import child; child.main()"])
else:
    process = multiprocessing.get_context({method!r}).Process(target=child.main)
    process.start()
    process.join()
{SAY_IF_ON}
"""
    got = wheeled.run(code, PYTHONPATH=libraries, CUDAGUARD="error")
    assert (got.stdout.split(), got.stderr) == (["True", "False"], "")


@pytest.mark.parametrize("flag", ["-s", "-O", "-B", pytest.param("-P", marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="new in 3.11"))])
def test_flags_do_not_lose_it(wheeled: Environment, libraries: str, flag: str) -> None:
    assert "cudaguard" in wheeled.modules("import jax", flag, PYTHONPATH=libraries, CUDAGUARD="error")
