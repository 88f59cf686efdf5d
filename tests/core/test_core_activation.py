"""Turning the guard on and off, here and in children."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cudaguard
from cudaguard import _activate, _config
from guarded import ROOT, Program, environment

PACKAGES = os.path.dirname(os.path.dirname(pytest.__file__))


def _mode() -> str:
    return _config.current().mode


@pytest.fixture
def _unarmed() -> Iterator[None]:
    """This process with the guard off before and after, and no torch needed: nothing is hooked without it."""
    cudaguard.disable()
    yield
    cudaguard.disable()


def test_the_ways_to_turn_it_on(program: Program) -> None:
    """Import, variable, call and command end in the same mode; a variable needs no import, an import no variable."""
    shown = "import sys; print(sys.modules['cudaguard._config'].current().mode if 'cudaguard' in sys.modules else 'absent')"
    imported = program(f"import cudaguard\n{shown}", mode=None, simulate=None)
    assert imported.out.strip() == "error"
    for mode, wanted in (("warn", "warn"), ("1", "error"), ("record", "record"), ("off", "off"), ("0", "off")):
        assert program(f"import cudaguard\n{shown}", mode=mode, simulate=None).out.strip() == wanted
    called = program(f"import cudaguard\ncudaguard.enable('warn')\ncudaguard.enable('warn')\n{shown}", mode=None, simulate=None)
    assert called.out.strip() == "warn"
    assert program(f"import torch\n{shown}", mode="warn", simulate=None).out.strip() == "warn"
    assert program(f"import torch\n{shown}", mode=None, simulate=None).out.strip() == "absent"
    assert program(f"import torch\n{shown}", mode="off", simulate=None).out.strip() == "absent"
    for run in (imported, called):
        assert run.err == ""


def test_simulating_alone_implies_mode_error(program: Program) -> None:
    """`CUDAGUARD_SIMULATE` without `CUDAGUARD` turns the guard on; with `CUDAGUARD=off` the devices stay and the guard does not."""
    source = "import torch, sys; print(torch.cuda.is_available(), sys.modules['cudaguard._config'].current().mode)"
    assert program(source, mode=None).ok().out.split() == ["True", "error"]
    assert program(source, mode="off").ok().out.split() == ["True", "off"]


def test_the_command_runs_a_program_under_the_guard(program: Program, tmp_path: Path) -> None:
    """`python -m cudaguard run` runs a script, and a mode given there is the one in force."""
    script = program("import sys; print(sys.argv[1:], __name__, sys.modules['cudaguard._config'].current().mode)", mode=None, simulate=None).script
    command = [sys.executable, "-m", "cudaguard", "run", "--mode", "warn", str(script), "a", "-b"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "['a', '-b'] __main__ warn", "")


@pytest.mark.usefixtures("_unarmed")
def test_handles_restore_the_mode_before_them() -> None:
    """Nested and out of order, a handle takes back its own call and no other."""
    with cudaguard.enable("record") as outer:
        with cudaguard.enable("warn"):
            assert _mode() == "warn"
        assert _mode() == "record"
        first, second, third = cudaguard.enable("error"), cudaguard.enable("warn"), cudaguard.enable("off")
        assert _mode() == "off"
        second.disable()
        assert _mode() == "off"
        third.disable()
        assert _mode() == "error"
        third.disable()
        second.disable()
        assert _mode() == "error"
        outer.disable()
        assert _mode() == "error"
        first.disable()
    assert _mode() == "off"


@pytest.mark.usefixtures("_unarmed")
def test_a_handle_says_what_it_is() -> None:
    """Its repr tells the mode, and whether it is in force."""
    handle = cudaguard.enable("warn")
    assert repr(handle) == "<cudaguard mode='warn' in force>"
    cudaguard.enable("error")
    assert repr(handle) == "<cudaguard mode='warn' not in force>"


@pytest.mark.usefixtures("_unarmed")
def test_disable_takes_every_call_back() -> None:
    """`disable()` turns the guard off however often it was turned on, and any number of times."""
    cudaguard.enable("warn")
    cudaguard.enable("error")
    cudaguard.disable()
    cudaguard.disable()
    assert _mode() == "off"


@pytest.mark.usefixtures("_unarmed")
def test_the_last_call_wins_over_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mode that is passed beats `CUDAGUARD`; without one the variable is asked at each call."""
    monkeypatch.setitem(_activate._user_environ, "CUDAGUARD", "warn")
    monkeypatch.setenv("CUDAGUARD", "warn")
    with cudaguard.enable("record"):
        assert _mode() == "record"
    with cudaguard.enable():
        assert _mode() == "warn"


@pytest.mark.usefixtures("_unarmed")
@pytest.mark.parametrize("word", ["off", "0"])
def test_off_in_the_environment_always_wins(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `CUDAGUARD=off` a call gives a handle that changes nothing."""
    monkeypatch.setenv("CUDAGUARD", word)
    handle = cudaguard.enable("error")
    assert _mode() == "off"
    handle.disable()
    assert os.environ["CUDAGUARD"] == word


@pytest.mark.usefixtures("_unarmed")
def test_a_handle_that_turns_the_guard_off_is_not_the_user_s_variable() -> None:
    """`enable("off")` can be undone by a later call, unlike `CUDAGUARD=off`."""
    with cudaguard.enable("off"):
        assert _mode() == "off"
        with cudaguard.enable("warn"):
            assert _mode() == "warn"


@pytest.mark.usefixtures("_unarmed")
def test_a_wrong_mode_is_a_value_error_that_names_the_legal_ones() -> None:
    """A call with a wrong mode raises, and leaves everything as it was."""
    with pytest.raises(ValueError, match=r"mode 'loud' is not known; legal: off, record, warn, error, reroute, respawn"):
        cudaguard.enable("loud")
    assert _mode() == "off"


@pytest.mark.usefixtures("_unarmed")
def test_report_and_trace_paths_are_absolute_from_the_moment_of_arming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path means the folder the program was in when it turned the guard on, also for children."""
    monkeypatch.chdir(tmp_path)
    with cudaguard.enable("record", report="r.jsonl", trace=Path("t.json")):
        os.chdir("/")
        assert _config.current()[1:3] == (str(tmp_path / "r.jsonl"), str(tmp_path / "t.json"))
        assert (os.environ["CUDAGUARD_REPORT"], os.environ["CUDAGUARD_TRACE"]) == (str(tmp_path / "r.jsonl"), str(tmp_path / "t.json"))


@pytest.mark.usefixtures("_unarmed")
def test_children_are_told_by_the_environment_until_disable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handle writes the mode for children to come; without one the environment is the user's own again."""
    names = [name for name in os.environ if name.startswith("CUDAGUARD")]
    assert names == []
    with cudaguard.enable("warn"):
        assert os.environ["CUDAGUARD"] == "warn"
        with cudaguard.enable("off"):
            assert os.environ["CUDAGUARD"] == "off"
        assert os.environ["CUDAGUARD"] == "warn"
    assert [name for name in os.environ if name.startswith("CUDAGUARD")] == []


def test_a_wrong_variable_is_one_line_and_the_program_runs(program: Program) -> None:
    """It names the legal values, leaves the guard off, and is said once however many processes there are and whether or not the guard is imported."""
    source = """
        import subprocess, sys
        import cudaguard, torch
        assert sys.modules["cudaguard._config"].current().mode == "off"
        subprocess.run([sys.executable, "-c", "import cudaguard; print('child')"], check=True)
        print("ran")
    """
    run = program(source, mode="loud", simulate=None).ok()
    assert run.out.split() == ["child", "ran"]
    assert run.err.count("\n") == 1
    assert all(word in run.err for word in ("'loud'", "off", "record", "warn", "error", "reroute", "respawn"))


@pytest.mark.parametrize("flag", ["-I", "-E"])
def test_python_s_own_switches_make_it_ignore_the_variable(flag: str, program: Program) -> None:
    """With -I or -E Python ignores its variables, and the guard its own: no finding, and a wrong value is not complained of."""
    source = """
        import sys, torch
        print("cudaguard" in sys.modules, torch.cuda.is_available())
    """
    run = program(source, mode="error", flags=(flag,)).ok()
    assert run.out.split() == ["False", "False"]
    assert run.err == ""
    assert program("print()", mode="loud", flags=(flag,)).ok().err == ""


SNAPSHOT = """
    import warnings
    warnings.simplefilter("ignore")  # some of the names that are looked at are deprecated
    import gc, json, os, sys
    import torch, torch.utils.data, torch._dynamo, torchdata.stateful_dataloader, multiprocess.pool, multiprocessing.pool, multiprocessing.spawn
    import concurrent.futures.process, joblib, signal, threading

    def everything():
        seen = {}
        for name, module in list(sys.modules.items()):
            if module is None or name.startswith(("cudaguard", "__main__", "wrapt")):
                continue
            for key, value in list(vars(module).items()):
                seen[name, key] = value
                if isinstance(value, type) and value.__module__ == name:
                    seen.update({(name, key, attribute): held for attribute, held in list(vars(value).items())})
        return seen

    def state():
        hooks = (sys.excepthook, sys.unraisablehook, threading.excepthook, signal.getsignal(signal.SIGTERM), sys.gettrace(), sys.getprofile())
        return (hooks, list(warnings.filters), dict(os.environ))

    def finders():
        return [finder for finder in sys.meta_path if not type(finder).__module__.startswith("wrapt")]

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, i):
            return i

    def use():
        assert [int(b) for b in torch.utils.data.DataLoader(Data(), batch_size=None, num_workers=1, multiprocessing_context="fork")] == [0, 1, 2, 3]
        torch.cuda.is_available(), torch.cuda.device_count()

    use()  # whatever the program itself loads or fills the first time
"""


def test_disable_restores_every_name(program: Program) -> None:
    """Every attribute of every module and class, every finder, hook and variable is the same object as before the guard came on."""
    source = (
        SNAPSHOT
        + """
    meta, names, rest = finders(), everything(), state()
    import cudaguard
    changed = 0
    for round in range(3):
        handle = cudaguard.enable("error")
        during = everything()
        changed = sum(1 for key, value in names.items() if during.get(key) is not value)
        use()
        if round:
            handle.disable()
        cudaguard.disable()
        now = everything()
        left = [key for key, value in names.items() if now.get(key, now) is not value and key[0] not in ("sys", "gc", "threading", "linecache")]
        left += [key for key in now if key not in names and len(key) == 3]
        assert not left, left
        assert finders() == meta, sys.meta_path
        assert state() == rest, (state(), rest)
    print(changed)
    """
    )
    run = program(source, mode=None, simulate=None, report=None).ok()
    assert int(run.out) >= 8, "the guard replaced nothing, so this test proves nothing"
    assert run.err == ""


CHILDREN = """
    import json, multiprocessing, os, subprocess, sys
    IMPORT
    import torch
    SHOW = '''if True:
        import sys, torch
        config = sys.modules.get("cudaguard._config")
        print(config.current().mode if config else "absent", hasattr(torch.cuda._lazy_init, "__wrapped__"))
    '''

    def show(queue):
        config = sys.modules.get("cudaguard._config")
        import cudaguard._journal as journal
        edge = journal.current.edge()
        armed = hasattr(torch.cuda._lazy_init, "__wrapped__")
        queue.put((config.current().mode, config.current().report, armed, edge.start_method, edge.maker, edge.site.line))

    if __name__ == "__main__":
        found = {}
        for method in ("fork", "spawn", "forkserver"):
            context = multiprocessing.get_context(method)
            queue = context.SimpleQueue()
            process = context.Process(target=show, args=(queue,))
            process.start()  # started here
            found[method] = queue.get()
            process.join()
            assert process.exitcode == 0
        done = subprocess.run([sys.executable, *FLAGS, "-c", SHOW], capture_output=True, text=True, check=True)
        found["subprocess"] = done.stdout.split() + [done.stderr]
        print(json.dumps(found))
"""


def test_every_kind_of_child_starts_armed(program: Program) -> None:
    """Fork, spawn, forkserver and subprocess children are in the parent's mode, with its report, and know who started them and where."""
    source = CHILDREN.replace("IMPORT", "import cudaguard; cudaguard.enable('warn', report='r.jsonl')").replace("FLAGS", "[]")
    run = program(source, mode="record", simulate=None, report=None)
    found = run.json()
    report = str(run.script.parent / "r.jsonl")
    for method in ("fork", "spawn", "forkserver"):
        assert found[method] == ["warn", report, True, method, "process", run.line("# started here")]
    assert found["subprocess"] == ["warn", "True", ""]
    assert run.err == ""


def test_children_of_multiprocessing_start_armed_without_the_start_up_file(program: Program) -> None:
    """Where site-packages is not processed (-S), spawn and forkserver children are armed all the same, by what multiprocessing sends them."""
    source = CHILDREN.replace("IMPORT", "import cudaguard; cudaguard.enable('warn')").replace("FLAGS", "['-S']")
    path = os.pathsep.join([str(ROOT), PACKAGES])
    run = program(source, mode=None, simulate=None, report=None, flags=("-S",), env={"PYTHONPATH": path})
    found = run.json()
    for method in ("fork", "spawn", "forkserver"):
        assert found[method] == ["warn", None, True, method, "process", run.line("# started here")]
    assert found["subprocess"][0] == "absent"


def test_disable_reaches_children_made_later(program: Program) -> None:
    """After `disable()` no child is armed, whichever way it is made."""
    source = """
        import multiprocessing, subprocess, sys
        import torch
        if __name__ == "__main__":  # a spawned child imports this script again
            import cudaguard

        def show():
            config = sys.modules.get("cudaguard._config")
            armed = hasattr(torch.cuda._lazy_init, "__wrapped__")
            print(multiprocessing.current_process().name, config.current().mode if config else "absent", armed)

        if __name__ == "__main__":
            cudaguard.disable()
            for method in ("fork", "spawn"):
                process = multiprocessing.get_context(method).Process(target=show, name=method)
                process.start()
                process.join()
            subprocess.run([sys.executable, "-c", "import sys, torch; print('sub', 'cudaguard' in sys.modules)"], check=True)
    """
    run = program(source, mode=None, simulate=None)
    assert run.ok().out.split("\n")[:3] == ["fork off False", "spawn absent False", "sub False"]


def test_a_mode_that_is_not_built_acts_as_error_and_says_so_once(program: Program) -> None:
    """Until it is built, `reroute` or `respawn` behaves as `error`, and one place tells of it."""
    modes = sorted(_config.NOT_BUILT)
    if not modes:
        pytest.skip("every mode is built")
    source = """
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Data(Dataset):
            def __len__(self):
                return 2
            def __getitem__(self, i):
                return torch.ones(1).cuda()

        torch.ones(1).cuda()
        try:
            list(DataLoader(Data(), num_workers=1, multiprocessing_context="fork"))
        except RuntimeError as error:
            print(type(error).__name__, str(error).count("is not built yet"))
    """
    for mode in modes:
        run = program(source, mode=mode).ok()
        said = int(run.out.split()[1]) + run.err.count("not built yet")
        assert run.out.split()[0] == "CudaForkError"
        assert said == 1


def test_the_call_of_a_library_that_asks_while_it_is_imported(program: Program, tmp_path: Path) -> None:
    """The user's line only imports: the call is read from the library's."""
    library = tmp_path / "site-packages" / "asking"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text("import torch\nOK = bool(torch.cuda.is_available())\n")
    source = """
        import json, sys, cudaguard
        sys.path.insert(0, "site-packages")
        import asking  # here
        origin = cudaguard.origin()
        print(json.dumps([origin.file, origin.line, origin.call, origin.tier]))
    """
    done = program(source)
    assert done.json() == [str(done.script), done.line("# here"), "torch.cuda.is_available", "queried"]
