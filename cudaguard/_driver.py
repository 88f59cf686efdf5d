"""Ask the CUDA driver whether it is up, without waking it.

``cuDeviceGetCount`` on a libcuda that is already in the process answers 3 (not initialised) before ``cuInit`` and
something else after it, and causes nothing; PyTorch's own ``test_lazy_init`` relies on the same. One question takes
about a microsecond. A forked child must never ask: there the answer is 3 whatever its parent did.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

NOT_INITIALISED = 3  # CUDA_ERROR_NOT_INITIALIZED
LIBRARY = "libcuda.so.1"

_ask: Callable[[], bool] | None = None
_pretended = False


def up() -> bool:
    """Whether somebody in this process has initialised the CUDA driver. False where that cannot be known."""
    return _ask() if _ask is not None else _find()


def watched() -> bool:
    """Whether this platform lets us ask at all."""
    return sys.platform == "linux"


def pretend(ask: Callable[[], bool] | None) -> None:
    """Let the simulated device answer in place of the driver; None goes back to the real one."""
    global _ask, _pretended
    _ask, _pretended = ask, ask is not None


def _find() -> bool:
    """Look for a loaded libcuda; from the first one found on, ask it directly."""
    global _ask
    ctypes = sys.modules.get("ctypes")  # torch and every CUDA library of Python load it: without it nobody woke the driver
    if not watched() or not hasattr(ctypes, "cdll"):  # its last name: a probe may come while it is being imported
        return False
    assert ctypes is not None
    try:
        library = ctypes.CDLL(LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False  # not in the process, so certainly not initialised
    get_count, count = library.cuDeviceGetCount, ctypes.c_int()

    def ask() -> bool:
        return bool(get_count(ctypes.byref(count)) != NOT_INITIALISED)

    _ask = ask
    return ask()


def simulated() -> bool:
    """Whether the answers come from the simulated device."""
    return _pretended
