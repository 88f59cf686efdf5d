"""The rules of the simulated driver against what was measured on an H200 (PyTorch 2.11): who initialises, and what children get."""

import pytest
import torch
from conformance import DRIVER_ERROR, changed, lacking

CLEAR = "!! RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method"
RAW = f"!! {DRIVER_ERROR}: CUDA error: initialization error"

# The parent's call -> torch.cuda._initialized after it; in a forked child: the bad-fork flag, and what ones(1, device="cuda") does.
MEASURED = {
    "pass": (False, False, "fine"),
    "torch.cuda.is_available()": (False, True, CLEAR),
    "torch.cuda.device_count()": (False, False, "fine"),
    "torch.accelerator.is_available()": (False, True, CLEAR),
    "torch.accelerator.current_accelerator()": (False, False, "fine"),
    "torch._C._get_accelerator()": (False, False, RAW),
    "torch.get_device_module()": (False, False, RAW),
    "torch.device(0)": (False, False, "fine"),
    "torch.manual_seed(0)": (False, False, "fine"),
    'torch.Generator(device="cuda")': (False, False, RAW),
    "torch.cuda.Stream()": (False, False, RAW),
    "torch.cuda.Event()": (False, False, "fine"),
    'torch.Stream(device="cuda")': (False, False, RAW),
    'torch.Event(device="cuda")': (False, False, "fine"),
    "torch.ones(1).pin_memory()": (False, False, RAW),
    "torch.ones(1).is_pinned()": (False, False, "fine"),
    "torch.empty(1, pin_memory=True)": (False, False, RAW),
    'torch.nested.nested_tensor([torch.ones(2)], device="cuda")': (False, False, RAW),
    'torch.nested.as_nested_tensor([torch.ones(2)], device="cuda")': (False, False, RAW),
    'torch.sparse_coo_tensor([[0]], [1.0], (2,), device="cuda")': (True, True, CLEAR),
    'torch.ops.aten.zeros([1], device="cuda")': (False, False, RAW),
    "torch.__config__.show()": (False, False, RAW),
    "torch.cuda.init()": (True, True, CLEAR),
    "torch.cuda.current_device()": (True, True, CLEAR),
    "torch.cuda.mem_get_info()": (True, True, CLEAR),
    "torch.cuda.get_device_name()": (True, True, CLEAR),
    "torch.cuda.set_device(0)": (True, True, CLEAR),
    'torch.ones(1, device="cuda")': (True, True, CLEAR),
}


@pytest.mark.parametrize("door", MEASURED)
def test_a_call_in_the_parent_does_what_it_does_on_a_gpu(door, printed):
    if lacking(door):
        pytest.skip("this torch has no such call")
    initialised, bad, end = MEASURED[door] if not changed("poison", door, torch.__version__) else (False, False, "fine")
    assert printed("poison")[door] == f"passed | {initialised} | {bad} False {end}"


QUIET = {
    "device": "[cuda:0, True, 0, torch.strided, True]",
    "data_ptr": "True",
    "is_available": "True",
    "device_count": "True",
    "is_initialized": "False",
    "memory_allocated": "0",
    "empty_cache": "None",
    "manual_seed_all": "None",
    "GradScaler": "True",
    "view": "[6]",
    "detach": "[2, 3]",
    "data": "[2, 3]",
    "storage": "24",
    "cpu work": "6.0",
    "parent still works": "cuda:0 float32 15.0",
}
DEAD = """index|slice|add|cpu|to|item|repr|pickle|clone|view used|data used|copy_ to cpu|parameter|sparse|Stream|Generator|is_pinned""".split("|")
MIXED = {
    "cpu plus cuda": "found at least two devices, cuda:0 and cpu!",
    "module": "got mat1 is on cpu, different from other tensors on cuda:0 (when checking argument in method wrapper_CUDA_addmm)",
}
REFUSED = ["zeros", "cuda()", "current_device", "get_device_name", "mem_get_info", "set_device", "default device", "grandchild", "deepcopy"]


@pytest.mark.parametrize("name", QUIET)
def test_a_bad_child_may_still(name, printed):
    if name == "GradScaler" and lacking("torch.amp.GradScaler"):
        pytest.skip("this torch has it elsewhere")
    assert printed("bad_child")[name] == QUIET[name]


@pytest.mark.parametrize("name", DEAD)
def test_a_bad_child_meets_the_raw_error(name, printed):
    assert printed("bad_child")[name] == RAW


@pytest.mark.parametrize("name", MIXED)
def test_a_bad_child_that_mixes_devices_is_told_so_first(name, printed):
    assert printed("bad_child")[name] == f"!! RuntimeError: Expected all tensors to be on the same device, but {MIXED[name]}"


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_child_meets_the_clear_error(name, printed):
    assert printed("bad_child")[name] == CLEAR


def test_children_that_are_not_bad_use_cuda(printed):
    lines = printed("clean_child")
    assert lines["forked first"] == lines["forked by the child"] == lines["parent then"] == "6.0"
    assert lines["spawned"] == "[6.0, 0]"
    assert lines["executed"] == "4"
    assert lines["spawned from a bad child"] == "[[6.0, 0], True]"
    assert lines["forked after"] == CLEAR


def test_crossing_follows_the_rules_of_ipc(printed):
    lines = printed("crossing")
    assert lines["tensor"] == "[cuda:0 float32 [0.0, 1.0, 2.0], True]"  # the receiver is initialised by receiving
    assert lines["written through"] == "cuda:0 float32 [1.0, 3.0, 4.0]"  # and shares the memory
    assert lines["sent on"].startswith("!! RuntimeError: Attempted to send CUDA tensor received from another process")
    assert lines["cloned first"].startswith("cpu float32")
    assert lines["non-leaf"].startswith("!! RuntimeError: Cowardly refusing to serialize non-leaf tensor")
    assert lines["storage"] == "!! RuntimeError: Cannot pickle CUDA storage; try pickling a CUDA tensor instead"
    assert "pin memory thread" in lines["pinned loader"]


C_FORK = """
import ctypes, os, torch
from cudaguard._shadow import _state
if {asked}: _state.state.mark = _state._Asked()
x = torch.zeros(2, device="cuda")
pid = ctypes.PyDLL(None).fork()
if pid == 0:
    try: print(x + 1, flush=True)
    except BaseException as error: print(type(error).__name__, error, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print((x + 1).tolist(), type(_state.state.mark).__name__)
"""


@pytest.mark.parametrize("asked", [False, True])
def test_a_fork_in_c_is_noticed_with_a_page_that_the_kernel_wipes_and_without(asked, python):
    done = python(C_FORK.format(asked=asked), CUDAGUARD="off", CUDAGUARD_SIMULATE="1")
    assert done.stdout.startswith(f"{DRIVER_ERROR} CUDA error: initialization error"), done
    assert done.stdout.splitlines()[-1] == f"[1.0, 1.0] {'_Asked' if asked else 'mmap'}"
