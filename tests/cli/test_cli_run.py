"""`run`: the program behaves as under plain python."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import zipfile

import pytest
from command_line import environment

SHOW = """\
import json, sys
main = sys.modules["__main__"]
names = [__name__, __package__, __doc__, __spec__ and __spec__.name, type(__loader__).__name__]
print(json.dumps([*names, sys.argv, sys.path[0], globals().get("__file__"), main.__dict__ is globals()]))
"""


@pytest.fixture
def program(write):
    write("show.py", SHOW)
    write("pkg/__init__.py", "")
    write("pkg/__main__.py", SHOW)
    write("pkg/part.py", SHOW)
    write("folder/__main__.py", SHOW)


@pytest.mark.parametrize(
    "words",
    [
        ("show.py", "a", "--mode", "b"),
        ("-m", "show", "--help"),
        ("-m", "pkg", "-c", "x"),
        ("-m", "pkg.part"),
        ("folder", "a"),
    ],
)
@pytest.mark.parametrize("run", [("run",), (), ("run", "--mode", "warn"), ("run", "--mode=record", "--")])
def test_a_program_finds_itself_as_under_plain_python(python, cudaguard, program, words, run):
    plain, guarded = python(*words), cudaguard(*run, *words)
    assert plain.returncode == guarded.returncode == 0, plain.stderr + guarded.stderr
    # Python's own loader for a script is a SourceFileLoader, ours a subclass of it.
    assert guarded.stdout.replace("Uncached", "SourceFileLoader") == plain.stdout


def test_a_command_finds_itself_as_under_plain_python(cudaguard, python):
    code = "import sys; print(__name__, sys.argv, repr(sys.path[0]), __spec__, '__file__' in globals())"
    assert cudaguard("run", "-c", code, "a", "-m").stdout == python("-c", code, "a", "-m").stdout


def test_an_archive_and_compiled_code_run(cudaguard, write, tmp_path, python):
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", "print('from the archive')")
    write("late.py", "print('compiled')")
    python("-c", "import py_compile; py_compile.compile('late.py', 'late.pyc')")
    assert cudaguard("app.pyz").stdout == "from the archive\n"
    assert cudaguard("late.pyc").stdout == "compiled\n"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="-P came with Python 3.11")
def test_sys_path_is_left_alone_where_python_puts_nothing_there(python, cudaguard, write):
    write("first.py", "import sys; print(sys.path)")
    assert cudaguard("run", "first.py", flags=("-P",)).stdout == python("first.py", flags=("-P",)).stdout != ""


@pytest.mark.parametrize(
    "code",
    [
        "pass",
        "raise SystemExit",
        "raise SystemExit(7)",
        "raise SystemExit('words on stderr')",
        "import sys; sys.exit(True)",
        "1 / 0",
        "import os; os._exit(9)",
        "raise KeyboardInterrupt",
        "a b",
    ],
)
def test_exit_code_and_stderr_are_those_of_plain_python(python, cudaguard, write, code):
    write("end.py", f"import atexit\natexit.register(print, 'at exit')\ndef inner():\n    {code}\ninner()\n")
    plain, guarded = python("end.py"), cudaguard("run", "end.py")
    assert (guarded.returncode, guarded.stdout, guarded.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_a_traceback_through_a_module_starts_in_the_module(cudaguard, write):
    write("broken.py", "def inner():\n    raise ValueError('mine')\ninner()\n")
    lines = cudaguard("-m", "broken").stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert 'broken.py", line 3' in lines[1]
    assert lines[-1] == "ValueError: mine"


def test_the_programs_own_excepthook_is_called(cudaguard, write):
    write(
        "hook.py",
        "import sys\nsys.excepthook = lambda kind, error, trace: print(kind.__name__, trace.tb_frame.f_code.co_name, trace.tb_lineno)\n1 / 0\n",
    )
    result = cudaguard("hook.py")
    assert (result.returncode, result.stdout, result.stderr) == (1, "ZeroDivisionError <module> 3\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_ends_it_as_it_ends_python(write, tmp_path):
    write("wait.py", "import time\nprint('waiting', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "cudaguard", "run", "wait.py"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert "cudaguard" not in stderr


def test_pools_of_every_start_method_work(cudaguard, write):
    write(
        "pools.py",
        """
        import multiprocessing, sys
        class Own:
            def __init__(self, x): self.x = x
        def twice(own): return Own(own.x * 2)
        if __name__ == "__main__":
            for method in multiprocessing.get_all_start_methods():
                with multiprocessing.get_context(method).Pool(1) as pool:
                    print(method, [own.x for own in pool.map(twice, [Own(1), Own(2)])])
        """,
    )
    for words in (("pools.py",), ("-m", "pools")):
        result = cudaguard("run", *words)
        assert result.returncode == 0, result.stderr
        assert [line.partition(" ")[2] for line in result.stdout.splitlines()] == ["[2, 4]"] * len(result.stdout.splitlines())
        assert "spawn" in result.stdout


def test_classes_of_the_program_still_pickle_at_exit(cudaguard, write):
    write("late.py", "import atexit, pickle\nclass Own: pass\natexit.register(lambda: print(type(pickle.loads(pickle.dumps(Own()))).__name__))\n")
    result = cudaguard("late.py")
    assert (result.stdout, result.stderr) == ("Own\n", "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "nope.py"), "cannot open 'nope.py': no such file"),
        (("nope.py",), "cannot open 'nope.py': no such file"),
        (("run", "-m", "no_such.module"), "no module named 'no_such.module' that can be run"),
        (("run", "-m", ".relative"), "cannot run '.relative'"),
        (("run", "-m"), "argument expected after -m"),
        (("run",), "no program given"),
        (("run", "--mode", "loud", "nope.py"), "mode 'loud' is not known; legal: off, record, warn, error, reroute, respawn, 0, 1"),
        (("run", "--mode"), "argument --mode: expected one argument"),
        (("--loud", "nope.py"), "unrecognized arguments: --loud"),
        (("run", "."), "cannot find a __main__ module in '.'"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_code_2(cudaguard, words, says):
    result = cudaguard(*words)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("cudaguard: ")
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_package_that_cannot_import_its_own_parts_says_which(cudaguard, write):
    write("half/__init__.py", "import not_installed_here")
    write("half/__main__.py", "")
    result = cudaguard("-m", "half")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'not_installed_here'"
    assert "cudaguard" not in result.stderr


MODE = "import cudaguard, os; from cudaguard import _config; print(_config.current().mode, os.environ.get('CUDAGUARD'))"


@pytest.mark.parametrize(
    ("words", "env", "mode"),
    [
        ((), {}, "error error"),
        ((), {"CUDAGUARD": "warn"}, "warn warn"),
        (("--mode", "record"), {"CUDAGUARD": "warn"}, "record record"),
        (("--mode", "1"), {}, "error error"),
        (("--mode", "off"), {}, "off off"),
        (("--mode", "error"), {"CUDAGUARD": "off"}, "off off"),
    ],
)
def test_the_mode_is_the_options_then_the_environments_then_error(cudaguard, words, env, mode):
    result = cudaguard("run", *words, "-c", MODE, env=env)
    assert (result.stdout, result.stderr) == (f"{mode}\n", "")


def test_a_wrong_variable_is_one_line_and_the_program_runs(cudaguard):
    result = cudaguard("run", "-c", "print('ran')", env={"CUDAGUARD": "loud"})
    assert (result.returncode, result.stdout) == (0, "ran\n")
    assert len(result.stderr.splitlines()) == 1
    assert "legal: off" in result.stderr


def test_paths_of_report_and_trace_are_those_of_the_start(cudaguard, tmp_path):
    code = "import os; os.chdir('/'); from cudaguard import _config; c = _config.current(); print(c.report); print(c.trace)"
    result = cudaguard("run", "--report", "r.jsonl", "--trace", "t.json", "-c", code)
    assert result.stdout.splitlines() == [str(tmp_path / "r.jsonl"), str(tmp_path / "t.json")]


def test_help_names_every_command(cudaguard):
    result = cudaguard("--help")
    assert result.returncode == 0
    for name in ("run", "doctor", "explain"):
        assert f"\n  {name} " in result.stdout
        assert cudaguard(name, "--help").stdout.startswith(f"usage: python -m cudaguard {name}")


def test_nothing_at_all_shows_the_help_as_an_error(cudaguard):
    result = cudaguard()
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("usage: ")


def test_a_finding_reaches_the_report_and_ends_the_program(cudaguard, write, tmp_path):
    write(
        "train.py",
        """
        import torch
        from torch.utils.data import DataLoader
        class Data:
            def __len__(self): return 2
            def __getitem__(self, i): return torch.ones(1).cuda()
        if __name__ == "__main__":
            torch.ones(1).cuda()
            for batch in DataLoader(Data(), num_workers=1, multiprocessing_context="fork"): pass
        """,
    )
    result = cudaguard("run", "--report", "found.jsonl", "train.py", env={"CUDAGUARD_SIMULATE": "1"})
    assert result.returncode == 1
    assert "cudaguard.errors.CudaForkError: Cannot re-initialize CUDA in forked subprocess" in result.stderr
    assert "_cli" not in result.stderr
    assert '"slug": "fork-after-init"' in (tmp_path / "found.jsonl").read_text()
