"""Which call in the parent initialises, only queries, or wakes the driver; and what a forked child then sees."""

import os

import torch
from _fork import in_child
from _show import error

os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
DOORS = """pass
torch.cuda.is_available()
torch.cuda.device_count()
torch.accelerator.is_available()
torch.accelerator.current_accelerator()
torch.accelerator.device_count()
torch._C._get_accelerator()
torch.get_device_module()
torch.device(0)
torch.device("cuda:0")
torch.manual_seed(0)
torch.cuda.manual_seed_all(0)
torch.cuda.is_initialized()
torch.Generator(device="cuda")
torch.cuda.Stream()
torch.cuda.Event()
torch.Stream(device="cuda")
torch.Event(device="cuda")
torch.ones(1).pin_memory()
torch.ones(1).is_pinned()
torch.empty(1, pin_memory=True)
torch.nested.nested_tensor([torch.ones(2)], device="cuda")
torch.nested.as_nested_tensor([torch.ones(2)], device="cuda")
torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged, device="cuda")
torch.sparse_coo_tensor([[0]], [1.0], (2,), device="cuda")
torch.ops.aten.zeros([1], device="cuda")
torch.cuda.init()
torch.cuda.current_device()
torch.cuda.synchronize()
torch.cuda.mem_get_info()
torch.cuda.memory_allocated()
torch.cuda.empty_cache()
torch.cuda.get_device_name()
torch.cuda.set_device(0)
torch.cuda.current_stream()
torch.cuda.get_rng_state()
torch.cuda.ipc_collect()
torch.ones(1, device="cuda")
torch.ones(1).cuda()
torch.nn.Linear(1, 1).cuda()
torch.UntypedStorage(1, device="cuda")
torch.amp.GradScaler("cuda")
torch.autocast("cuda")
torch.cuda.FloatTensor(1)
torch.cuda.is_bf16_supported()
torch.__config__.show()"""


def answer(door):
    """In a fresh process: what the call did to it, and what its own forked child then gets."""
    try:
        exec(door, {"torch": torch})
        said = "passed"
    except Exception as raised:
        said = f"!! {type(raised).__name__}"
    return " | ".join([said, str(torch.cuda._initialized), in_child(child)])


def child():
    found = [torch.cuda._is_in_bad_fork(), torch.cuda.is_initialized()]
    try:
        torch.ones(1, device="cuda")
        return " ".join(map(str, [*found, "fine"]))
    except Exception as raised:
        return " ".join(map(str, [*found, error(raised)]))


for door in DOORS.splitlines():
    print(f"{door}: {in_child(lambda door=door: answer(door))}", flush=True)
