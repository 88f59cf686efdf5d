"""What a program that works must not notice of the guard, and what the guard does when the machine fails it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from guarded import Program, environment, run

HEALTHY = """
    import json, multiprocessing, os, sys, threading
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Plain(Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, i):
            torch.manual_seed(i)
            torch.cuda.manual_seed_all(i)
            assert not torch.cuda.is_initialized()
            torch.cuda.device_count(), torch.device("cuda"), torch.get_rng_state()
            return torch.ones(2) * i

    def uses(queue):
        torch.cuda.is_available()
        queue.put(str(torch.ones(1).cuda().device))

    def child(context):
        queue = context.SimpleQueue()
        process = context.Process(target=uses, args=(queue,))
        process.start()
        said = queue.get()
        process.join()
        return [said, process.exitcode]

    if __name__ == "__main__":
        os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # torch sets it itself up to 2.4
        before, variables = dict(os.environ), sorted(os.environ)
        seen = [child(multiprocessing.get_context("fork"))]  # forked before CUDA was initialised
        model = torch.nn.Linear(2, 2).cuda()
        torch.cuda.synchronize()
        threads = [threading.Thread(target=lambda: torch.ones(1).cuda()) for _ in range(4)]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        for options in ({}, {"pin_memory": True}, {"persistent_workers": True}):
            loader = DataLoader(Plain(), num_workers=2, multiprocessing_context="fork", timeout=30, **options)
            seen.append([float(model(batch.cuda()).cpu().shape[0]) for epoch in range(2) for batch in loader])
        seen.append(child(multiprocessing.get_context("spawn")))
        with multiprocessing.get_context("fork").Pool(2) as pool:
            seen.append(pool.map(abs, [-1, 2]))
        pid = os.fork()
        if pid == 0:
            os._exit(7)
        seen.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        seen.append(sorted(os.environ) == variables and dict(os.environ) == before)
        print(json.dumps(seen))
"""


@pytest.mark.parametrize("mode", ["off", "record", "warn", "error"])
def test_a_healthy_program_hears_nothing(mode: str, program: Program) -> None:
    """Legal use of CUDA around forks: no output, no finding above a note, the same results and environment in every mode."""
    done = program(HEALTHY, mode=mode, flags=("-W", "ignore:This process:DeprecationWarning"))  # Python 3.12's own, of any fork with threads
    ones = [1.0] * 8
    assert done.json() == [["cuda:0", 0], ones, ones, ones, ["cuda:0", 0], [1, 2], 7, True]
    assert done.err == ""
    assert {finding["severity"] for finding in done.report} <= {"note"}


SAME = """
    import copy, inspect, json, pickle, sys
    import torch, torch.utils.data, torch.nested, torch.distributed, torch.multiprocessing.reductions, multiprocessing.spawn, multiprocessing.process

    NAMES = NAMES_HERE

    def find(name):
        module, _, path = name.partition(":")
        value = sys.modules[module]
        for part in path.split("."):
            value = getattr(value, part)
        return value

    def tried(action):
        try:
            return str(action())
        except Exception as error:
            return [type(error).__name__]

    def look(name):
        value = find(name)
        return {
            "signature": tried(lambda: inspect.signature(value)), "name": value.__name__, "qualname": value.__qualname__,
            "module": value.__module__, "doc": value.__doc__, "kind": type(value).__name__, "function": inspect.isfunction(value),
            "pickle": tried(lambda: pickle.loads(pickle.dumps(value)) is value), "copy": tried(lambda: copy.copy(value) is value),
            "deepcopy": tried(lambda: copy.deepcopy(value) is value), "callable": callable(value),
            "annotations": sorted(getattr(value, "__annotations__", {})),
        }
"""

# Two stand-ins are others by necessity, in private modules of torch's: both must pickle, as the guard's own.
NAMED = {"name", "qualname", "module", "kind", "annotations"}
COMPILED_KIND = {"kind", "function"}  # what stands in for a Cython or cached function is a Python function; everything else of it is the same
OURS = {"_worker_loop": NAMED, "ExceptionWrapper": NAMED | {"signature", "doc"}}


def test_everything_replaced_looks_like_the_original(program: Program) -> None:
    """Signature, name, documentation, pickling and copying of every replaced function answer as without the guard."""
    listing = """
        import json, sys, torch, torch.nested, torch.distributed, multiprocessing.pool
        from cudaguard import _hooks
        names = []
        for holder, name, original, new in _hooks.patches._made:
            module = getattr(holder, "__module__", None) if isinstance(holder, type) else holder.__name__
            names.append(f"{module}:{holder.__qualname__}.{name}" if isinstance(holder, type) else f"{module}:{name}")
        print(json.dumps(names))
    """
    names = program(listing).json()
    assert "torch.cuda:_lazy_init" in names
    assert len(names) >= 8
    source = SAME.replace("NAMES_HERE", repr(names)) + "\n    print(json.dumps({name: look(name) for name in NAMES}))\n"
    with_guard, without = program(source).json(), program(source, mode="off").json()
    for name in names:
        free = OURS.get(name.rpartition(":")[2], set())
        free |= COMPILED_KIND if name.startswith("cuda.bindings") or "lru_cache" in without[name]["kind"] else set()
        theirs = {key: value for key, value in without[name].items() if key not in free}
        assert {key: with_guard[name][key] for key in theirs} == theirs, name


COMPILED = """
    import json, sys, warnings
    warnings.simplefilter("ignore")
    if sys.argv[1] == "before":
        import cudaguard
    import torch, torch._dynamo
    if sys.argv[1] == "after":
        torch.compile(lambda x: x + 1, backend="eager", fullgraph=True)(torch.ones(1))
        import cudaguard

    def available(x):
        return x + 1 if torch.cuda.is_available() else x - 1

    def count(x):
        return x + torch.cuda.device_count()

    def create(x):
        return x + torch.ones(2, device=x.device) + torch.zeros(2) + torch.arange(2)

    def initialised(x):
        return x + (1 if torch.cuda.is_initialized() else 2)

    def archs(x):
        return x + len(torch.cuda.get_arch_list())

    def current(x):
        return x + torch.cuda.current_device()

    def moved(x):
        return x.to("cuda") + 1

    def isinstances(x):
        return x + 1 if isinstance(x, torch.Tensor) and not isinstance(x, torch.nn.Parameter) else x

    class Scripted(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros([2]) + torch.ones_like(x) + x.relu()

    def scripted(x):
        y = x * 2
        return y + torch.empty([2]).fill_(1.0)

    def asks(x):
        return x if torch.cuda.is_available() else x + 1

    def tried(action):
        try:
            return str(action())
        except Exception as error:
            return [type(error).__name__]

    x = torch.ones(2)
    seen = {}
    for function in (available, count, create, initialised, archs, isinstances, moved, current):
        seen[function.__name__] = tried(lambda: torch.compile(function, fullgraph=True, backend="eager")(x))
    seen["scripted module"] = tried(lambda: torch.jit.script(Scripted())(x))
    seen["scripted"] = tried(lambda: torch.jit.script(scripted)(x))
    seen["asks"] = tried(lambda: torch.jit.script(asks)(x))
    seen["traced"] = tried(lambda: torch.jit.trace(create, (x,))(x))
    seen["generator"] = isinstance(torch.Generator(), torch.Generator)
    print(json.dumps(seen))
"""


@pytest.mark.parametrize("simulate", [None, 2])
def test_compiling_and_scripting_answer_as_without_the_guard(simulate: int | None, program: Program) -> None:
    """`torch.compile(fullgraph=True)`, `torch.jit.script` and `trace` give the same, whether the guard came on before or after Dynamo."""
    without = program(COMPILED, "none", mode="off", simulate=simulate).json()
    assert without["available"].startswith("tensor")
    assert without["scripted"].startswith("tensor")
    for when in ("before", "after"):
        done = program(COMPILED, when, mode="error" if simulate else None, simulate=simulate)
        seen = done.json()
        seen |= {name: value for name, value in without.items() if isinstance(value, list)}  # what Dynamo cannot take, it may under the guard
        assert seen == without, when
        assert done.err == ""
        assert "internal" not in done.slugs()


TOUCHING = """
    import os, sys, torch
    torch.ones(1).cuda()
    children = []
    for n in range(int(sys.argv[1])):
        pid = os.fork()
        if pid == 0:
            try:
                exec(compile("\\n" * n + "torch.ones(1).cuda()", "x" * 3000 + ".py", "exec"))
            except RuntimeError as error:
                os._exit(0 if type(error).__name__ == "CudaForkError" else 1)
            os._exit(2)
        children.append(pid)
    print(sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
"""


def test_reports_of_twenty_processes_at_once_are_not_torn(program: Program) -> None:
    """Twenty processes append long findings at once: every line is whole JSON, one for each process."""
    done = program(TOUCHING, "20")
    assert done.ok().out.strip() == "0"
    assert len(done.report) == len({finding["pid"] for finding in done.report}) == 20
    assert all(len(json.dumps(finding)) > 4096 for finding in done.report)


def test_a_report_that_cannot_be_written_is_one_line_and_the_program_goes_on(program: Program, tmp_path: Path) -> None:
    """A full disk, a folder, a missing folder: one line on stderr that names the path; the error is raised all the same."""
    blocked = [str(tmp_path), str(tmp_path / "missing" / "r.jsonl"), *(["/dev/full"] if os.path.exists("/dev/full") else [])]
    for path in blocked:
        done = program(TOUCHING, "1", env={"CUDAGUARD_REPORT": path}, report=None)
        assert done.ok().out.strip() == "0"
        lines = done.err.splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("cudaguard:")
        assert path in lines[0]


def test_the_same_trouble_with_the_report_is_told_once_a_process(program: Program) -> None:
    """Ten findings that cannot be written make one line."""
    source = """
        import os, torch
        torch.ones(1).cuda()
        pid = os.fork()
        if pid == 0:
            for n in range(10):
                try:
                    exec(compile("\\n" * n + "torch.ones(1).cuda()", "x.py", "exec"))
                except RuntimeError:
                    pass
            os._exit(0)
        os.waitpid(pid, 0)
    """
    done = program(source, env={"CUDAGUARD_REPORT": "/no/such/folder/r"}, report=None).ok()
    assert done.err.count("\n") == 1


def test_interrupts_and_exits_pass_through_every_hook(program: Program) -> None:
    """A KeyboardInterrupt or SystemExit that comes while a hook runs is the program's, not a fault of the guard's."""
    source = """
        import json, os, cudaguard, torch
        from cudaguard import _driver, _places
        seen = []
        def interrupt(*args, **kwargs):
            raise KINDS[len(seen) % 2]
        KINDS = (KeyboardInterrupt, SystemExit)
        real = _places.here
        for action in (torch.cuda.is_available, torch.cuda.is_available, torch.cuda.init, torch.cuda.init):
            _places.here = interrupt
            try:
                action()
                seen.append("nothing")
            except (KeyboardInterrupt, SystemExit) as error:
                seen.append(type(error).__name__)
            _places.here = real
        print(json.dumps([seen, [f["slug"] for f in cudaguard.report().findings]]))
    """
    done = program(source)
    seen, slugs = done.json()
    assert seen == ["KeyboardInterrupt", "SystemExit"] * 2
    assert slugs == []


def test_a_real_interrupt_ends_the_program_as_it_would(program: Program, tmp_path: Path) -> None:
    """Ctrl-C in a guarded loader ends it with KeyboardInterrupt and no words of the guard's."""
    source = """
        import os, signal, threading, time, torch
        from torch.utils.data import DataLoader, Dataset
        class Slow(Dataset):
            def __len__(self):
                return 1000
            def __getitem__(self, i):
                time.sleep(0.05)
                return i
        torch.ones(1).cuda()
        threading.Timer(0.6, os.kill, (os.getpid(), signal.SIGINT)).start()
        for batch in DataLoader(Slow(), num_workers=1, multiprocessing_context="fork"):
            pass
    """
    done = program(source)
    assert done.code in (-2, 1, 130)
    assert "KeyboardInterrupt" in done.err
    assert "cudaguard:" not in done.err
    assert done.report == []


def test_a_room_that_cannot_be_installed_does_not_break_the_import(program: Program) -> None:
    """A fault while hooks are installed, before or after torch: the import succeeds, and one note is kept."""
    source = """
        import json, sys
        import cudaguard
        from cudaguard import _hooks
        def broken(patches, *rest):
            raise ValueError("broken room")
        if sys.argv[1] == "late":
            import torch
            cudaguard.disable()
        import cudaguard._hooks.forks, cudaguard._hooks.imports
        cudaguard._hooks.forks.install = lambda: broken(None)
        if sys.argv[1] == "late":
            cudaguard.enable()
        import torch
        print(json.dumps([torch.cuda.is_available(), str(torch.ones(1)), [f["slug"] for f in cudaguard.report().findings]]))
    """
    for when in ("early", "late"):
        done = program(source, when, mode=None)
        assert done.json() == [True, "tensor([1.])", ["internal"]], when
        assert done.err == ""


def test_exiting_is_clean_in_every_mode(tmp_path: Path) -> None:
    """A program without CUDA that uses threads and subprocesses exits with its own code and no words."""
    code = """if True:
        import subprocess, sys, threading, torch
        threading.Thread(target=print).start()
        sys.exit(subprocess.call([sys.executable, "-c", "exit(5)"]))
    """
    for mode in ("record", "error"):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(CUDAGUARD=mode), cwd=tmp_path, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (5, "\n", "")


def test_sysconfig_may_read_its_own_data_under_the_guard(tmp_path: Path) -> None:
    """That is an import, in the middle of which sysconfig's answers have holes (Python 3.13): the guard must not step aside there."""
    source = """
        import cudaguard, json, sysconfig
        assert sysconfig.get_config_var("prefix")
        print(json.dumps([finding["message"] for finding in cudaguard.report().findings]))
    """
    assert run(tmp_path, source).json() == []


def test_a_cached_function_keeps_the_methods_of_its_cache(tmp_path: Path) -> None:
    """`torch.cuda.device_count.cache_clear()` is a known remedy for a count taken too early; in torch 2.2 functools.lru_cache made it."""
    source = """
        import functools, json, torch
        torch.cuda.device_count = functools.lru_cache(maxsize=1)(torch.cuda.device_count)
        import cudaguard
        asked = [torch.cuda.device_count.cache_info().currsize for _ in range(2) if torch.cuda.device_count() + 1]
        torch.cuda.device_count.cache_clear()
        print(json.dumps([*asked, torch.cuda.device_count.cache_info().currsize]))
    """
    assert run(tmp_path, source, simulate=None).json() == [1, 1, 0]
