"""Which call in the parent initialises, only queries, or wakes the driver; and what a forked child then sees."""

import os
import subprocess
import sys

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
torch.cuda.is_bf16_supported()"""
PROBE = """
import os, sys, warnings
warnings.simplefilter("ignore")
import torch
try:
    {door}
    said = "passed"
except Exception as raised:
    said = f"!! {{type(raised).__name__}}"
facts = [said, torch.cuda._initialized]
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    try:
        bad, initialised = torch.cuda._is_in_bad_fork(), torch.cuda.is_initialized()
        try:
            torch.ones(1, device="cuda")
            end = "fine"
        except Exception as raised:
            end = f"{{type(raised).__name__}}: {{str(raised).splitlines()[0]}}"
        os.write(writer, f"{{bad}} {{initialised}} {{end}}".encode())
    finally:
        os._exit(0)
os.close(writer)
print(*facts, os.fdopen(reader).read(), sep=" | ")
"""


def ask(door):
    run = subprocess.run([sys.executable, "-c", PROBE.format(door=door)], capture_output=True, text=True, timeout=120)
    return run.stdout.strip() or (run.stderr.strip().splitlines() or ["nothing"])[-1]


for door in DOORS.splitlines():
    print(f"{door}: {ask(door)}", flush=True)
