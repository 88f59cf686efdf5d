"""What a touch means. The shadow asks a policy and knows nothing of who wrote it.

`Policy` itself is the permissive one: N healthy devices that nobody has to initialise. The simulated device overrides it with the
rules of a driver, a rerouted worker with its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from cudaguard._shadow._errors import driver_error, not_simulated

Device = torch.device


class Properties:
    """Stands for ``torch.cuda.get_device_properties``."""

    name = "Simulated CUDA device"
    major, minor = 9, 0
    total_memory = 80 << 30
    multi_processor_count = 132
    warp_size = 32
    max_threads_per_multi_processor = 2048
    max_threads_per_block = 1024
    regs_per_multiprocessor = 65536
    shared_memory_per_block = 49152
    shared_memory_per_block_optin = 232448
    shared_memory_per_multiprocessor = 233472
    L2_cache_size = 50 << 20
    is_integrated = is_multi_gpu_board = 0
    gcnArchName = name
    clock_rate = 1_980_000
    memory_clock_rate = 2_619_000
    memory_bus_width = 5120
    pci_bus_id = pci_device_id = pci_domain_id = 0

    def __init__(self, index: int = 0) -> None:
        self.pci_bus_id = index
        self.uuid = f"00000000-0000-0000-0000-{index:012x}"

    def __repr__(self) -> str:
        total = self.total_memory >> 20
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, total_memory={total}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


class Policy:
    """N devices, always ready. Subclasses say what a touch costs."""

    reduce: Callable[[torch.Tensor], Any] | None = None  # how a tensor crosses to another process, if not by an IPC handle

    def __init__(self, count: int) -> None:
        self.count = count  # devices that may be named
        self._thread = threading.local()  # the current device is one per thread, as in CUDA

    # The doors
    def initialise(self) -> None:
        """A door that goes through torch's lazy initialisation: pass, or raise what torch would."""

    def raw(self, call: str) -> None:
        """A door that goes straight to the driver, past torch: pass, or raise what the driver would."""

    def ask(self, call: str) -> None:
        """A question that goes to the driver only where torch initialised it, and is answered without one elsewhere."""

    def arrive(self, call: str = "") -> None:
        """Something is put on a device: by the lazy door, or by a raw one that says its name."""
        if call:
            self.raw(call)
        else:
            self.initialise()

    def held(self, call: str) -> None:
        """Data of an earlier era that was made usable here (see `_classes.HELD`) is used for the first time."""

    def inherited(self, call: str) -> None:
        """A tensor of an earlier era is used. Must raise: its memory belongs to another process."""
        raise driver_error("initialization error")

    def kernel(self, call: str) -> bool:
        """May an operator that has only a CUDA kernel run on CPU data? False or an exception refuses it."""
        return True

    def lacking(self, what: str, instead: str) -> BaseException:
        """The error for what no CPU can stand in for, CUDA graphs and the like. `instead` is what to do about it."""
        return not_simulated(what, instead)

    def compile(self, original: Callable[..., Any], model: Any, options: dict[str, Any]) -> Any:
        """``torch.compile``: a compiler would look through the shadow and generate code for the device it names."""
        return original(model, **{**options, "disable": True})

    # Forks
    def forked(self) -> bool:
        """This process turned out to be a forked child: is what it inherited dead?"""
        return False

    # What torch's own Python code asks of its C half
    def start(self) -> None:
        """``torch._C._cuda_init``, called by torch's lazy initialisation."""

    def bad_fork(self) -> bool:
        """``torch._C._cuda_isInBadFork``."""
        return False

    def visible(self) -> int:
        """``torch._C._cuda_getDeviceCount``, which is what is_available() asks."""
        return self.count

    def listed(self) -> int:
        """What NVML would count, which wakes nobody."""
        return self.count

    def arch_flags(self) -> str | None:
        """``torch._C._cuda_getArchFlags``."""
        return "sm_90"

    # The machine
    def current(self) -> int:
        """The current device of this thread; asks nobody."""
        return getattr(self._thread, "index", 0)

    def set_current(self, index: int) -> None:
        self._thread.index = index

    def properties(self, index: int) -> Any:
        return Properties(index)

    def memory(self, index: int) -> tuple[int, int]:
        """Free and total bytes."""
        total = int(self.properties(index).total_memory)
        return total - (1 << 30), total
