"""Turning the simulation on: what the variable may say, when it is refused, and that nothing is loaded when it is off."""

import os
import subprocess
import sys

import pytest
import torch
from conformance import lacking

from cudaguard import _simulate

ASK = "import torch; print(torch.cuda.is_available(), torch.cuda.device_count())"


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("2", 2), (" 8 ", 8), ("", None), ("0", None)])
def test_legal_values(text, count, capsys):
    assert _simulate.wanted({"CUDAGUARD_SIMULATE": text}) == count
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("text", ["two", "-1", "1.5", "1000", "²"])
def test_another_value_is_named_once_and_simulates_nothing(text, capsys):
    assert _simulate.wanted({"CUDAGUARD_SIMULATE": text}) is None
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "CUDAGUARD_SIMULATE" in said
    assert "1 to 64" in said


def test_the_environment_turns_it_on(python):
    run = python(ASK, CUDAGUARD="off", CUDAGUARD_SIMULATE="3")
    assert run.stdout.split() == ["True", "3"], run.stderr


def test_off_loads_nothing_of_the_shadow(python):
    code = "import sys, torch, cudaguard; print(torch.cuda.is_available(), 'cudaguard._shadow' in sys.modules, 'cudaguard._simulate' in sys.modules)"
    assert python(code, CUDAGUARD="error").stdout.split() == ["False", "False", "False"]


@pytest.mark.parametrize(("files", "nvml", "visible", "word"), [(["/dev/nvidia0"], 0, None, "/dev/nvidia0"), ([], 1, None, "NVML")])
def test_a_real_gpu_in_sight_refuses(files, nvml, visible, word, monkeypatch, capsys):
    monkeypatch.setattr(_simulate.glob, "glob", lambda pattern: [f for f in files if "nvidia" in pattern])
    monkeypatch.setattr(_simulate, "_nvml_count", lambda: nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert _simulate.start(1) is False
    said = capsys.readouterr().err
    assert said.startswith("cudaguard: CUDAGUARD_SIMULATE is ignored: ")
    assert word in said


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_gpu_does_not_refuse(hidden, monkeypatch):
    monkeypatch.setattr(_simulate.glob, "glob", lambda pattern: ["/dev/nvidia0"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert _simulate._real() == ""


def test_the_probe_of_the_driver_gets_the_simulated_answer(python):
    code = (
        "import os, torch; from cudaguard import _driver; print(_driver.up()); torch.cuda.device_count(); print(_driver.up());"
        "torch.cuda.is_available(); print(_driver.up(), flush=True); os.fork() or print(_driver.up(), flush=True) or os._exit(0); os.wait()"
    )
    assert python(code, CUDAGUARD="off", CUDAGUARD_SIMULATE="1").stdout.split() == ["False", "False", "True", "False"]


def test_lazy_init_is_one_plain_function_in_three_places(python):
    code = (
        "import types, torch; a = [torch.cuda._lazy_init, torch.cuda.memory._lazy_init, torch.cuda.random._lazy_init];"
        "print(len(set(a)), type(a[0]) is types.FunctionType); seen = []; torch.cuda._lazy_init = lambda: (seen.append(1), a[0]());"
        "torch.ones(1).cuda(); print(len(seen) > 0, torch.cuda.is_initialized())"
    )
    assert python(code, CUDAGUARD="off", CUDAGUARD_SIMULATE="1").stdout.split() == ["1", "True", "True", "True"]


def test_the_device_says_that_it_is_simulated(python):
    code = "import torch; print(torch.cuda.get_device_name())"
    assert python(code, CUDAGUARD="off", CUDAGUARD_SIMULATE="1").stdout.strip() == "Simulated CUDA device"


def test_an_operator_with_only_a_cuda_kernel_runs(python):
    code = (
        "import torch; e = torch.library.Library('only', 'DEF'); e.define('twice(Tensor x) -> Tensor'); e.impl('twice', lambda x: x * 2, 'CUDA')\n"
        "print(torch.ops.only.twice(torch.ones(1, device='cuda')))\n"
        "try: torch.ops.only.twice(torch.ones(1))\n"
        "except NotImplementedError: print('refused')"
    )
    run = python(code, CUDAGUARD="off", CUDAGUARD_SIMULATE="1")
    refused = ["refused"] if hasattr(torch._ops.OpOverload, "redispatch") else []  # torch 2.2 hands kernels copies, so nobody can tell
    assert run.stdout.splitlines() == ["tensor([2.], device='cuda:0')", *refused], run.stderr


@pytest.mark.parametrize("what", ["torch.cuda.CUDAGraph()", "torch.cuda._compile_kernel('', 'f')", "torch.distributed.init_process_group('nccl')"])
def test_what_cannot_be_pretended_says_so(what, python):
    if lacking(what):
        pytest.skip("this torch has no such call")
    run = python(f"import torch; {what}", CUDAGUARD="off", CUDAGUARD_SIMULATE="1")
    assert "RuntimeError" in run.stderr
    assert "not simulated" in run.stderr


def test_a_program_may_hide_the_devices_from_itself(python):
    code = (
        "import os, torch; os.environ['CUDA_VISIBLE_DEVICES'] = ''; print(torch.cuda.device_count(), torch.cuda.is_available())\n"
        "try: torch.ones(1).cuda()\n"
        "except RuntimeError as raised: print(raised)"
    )
    run = python(code, CUDAGUARD="off", CUDAGUARD_SIMULATE="2")
    assert run.stdout.splitlines() == ["0 False", "No CUDA GPUs are available"], run.stderr


@pytest.mark.parametrize(
    ("mask", "count"), [(None, 4), ("0,1", 2), ("3", 1), (" 1 , 0", 2), ("1,9,0", 1), ("0,-1,1", 1), ("1,1", 0), ("", 0), ("GPU-1", 4)]
)
def test_what_a_mask_leaves(mask, count):
    assert _simulate.masked(mask, 4) == count


@pytest.mark.parametrize(("given", "mask", "seen"), [("", "1", "1 True"), ("0", "", "0 False"), ("", "", "2 True")])
def test_a_mask_that_the_program_sets_before_it_imports_torch_is_its_own(given, mask, seen, tmp_path):
    """In a spawned child too, which the program's mask reaches as if the shell had set it: both answer alike. The shell's own is not obeyed."""
    script = tmp_path / "program.py"
    script.write_text(
        "import multiprocessing, os\n"
        f"os.environ['CUDA_VISIBLE_DEVICES'] = {mask!r}\n"
        "import torch\n"
        "def told(): print(torch.cuda.device_count(), torch.cuda.is_available(), flush=True)\n"
        "def child(): told(); print(torch.cuda.device_count(), works('cuda:1'), flush=True)\n"
        "def works(device):\n"
        "    try: return torch.ones(1, device=device).device == torch.device(device)\n"
        "    except RuntimeError: return False\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=child)\n"
        "    process.start(); process.join(); told()\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA", "_CUDAGUARD"))}
    env = clean | {"CUDAGUARD": "error", "CUDAGUARD_SIMULATE": "2", "CUDA_VISIBLE_DEVICES": given}
    run = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=120)
    assert run.stdout.splitlines() == [seen, f"{seen[0]} {seen[0] == '2'}", seen], run.stderr


@pytest.mark.parametrize("first", ["", "torch.cuda.get_arch_list(); "])
def test_a_child_loses_no_gpu_that_its_parent_never_saw(first, python):
    """Asking marks later children, whatever the answer is."""
    code = (
        "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''; import torch\n"
        f"{first}print(torch.cuda.is_available(), flush=True)\n"
        "os.fork() or print(torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda._is_in_bad_fork(), flush=True) or os._exit(0)\n"
        "os.wait()"
    )
    run = python(code, CUDAGUARD="error", CUDAGUARD_SIMULATE="1")
    assert (run.stdout.split(), run.stderr) == (["False", "False", "0", "True"], "")


# What a later torch might drop, a program that does not need it, one that does, and the word by which the note names it.
DROPPED = {
    "import sys; sys.modules['torch.utils.checkpoint'] = None": ("torch.func.vmap(torch.sin)(torch.ones(2))", "torch.func"),
    "del torch._ops.OpOverloadPacket": ("torch.library.Library('mine', 'DEF').impl('aten::abs', lambda x: x, 'CUDA')", "CUDA kernel"),
    "del torch.jit._builtins": ("torch.compile(lambda x: x)", "torch.compile"),
}
ORDINARY = "x = torch.ones(2, device='cuda', requires_grad=True); (x * 3).sum().backward(); print(x.grad.device)"


@pytest.mark.parametrize("drop", DROPPED)
def test_a_private_name_that_is_gone_is_missed_only_by_who_needs_it(drop, python):
    if torch.version.cuda and "OpOverloadPacket" in drop:
        pytest.skip("a CUDA build has operators with a CUDA kernel only from the start, and every program needs the name there")
    start = f"import torch\n{drop}\nfrom cudaguard import _simulate\nprint(_simulate.start(1))\n{ORDINARY}\n"
    needs, word = DROPPED[drop]
    run = python(start, CUDAGUARD="off")
    assert (run.stdout.split(), run.stderr) == (["True", "cuda:0"], "")
    said = [line for line in python(f"{start}for _ in 'ab':\n  try: exec({needs!r})\n  except Exception: pass", CUDAGUARD="off").stderr.splitlines()]
    assert len(said) == 1, said
    assert said[0].startswith("cudaguard: ")
    assert word in said[0]


def test_a_torch_that_lacks_the_foundations_is_refused_in_one_line(python):
    code = (
        "import torch; had = torch.zeros; del torch._C._disabled_torch_function_impl\n"
        "from cudaguard import _simulate; print(_simulate.start(1), torch.zeros is had, torch.cuda.is_available())"
    )
    run = python(code, CUDAGUARD="off")
    assert run.stdout.split() == ["False", "True", "False"]
    assert run.stderr.count("\n") == 1
    assert run.stderr.startswith("cudaguard: CUDAGUARD_SIMULATE is ignored: this torch lacks")
