"""Ask the CUDA driver whether it is up, without waking it.

``cuDeviceGetCount`` on a libcuda that is already in the process answers 3 (not initialised) before ``cuInit`` and
something else after it, and causes nothing; PyTorch's own ``test_lazy_init`` relies on the same. One question takes
about a microsecond. A forked child must never ask: there the answer is 3 whatever its parent did.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NOT_INITIALISED = 3  # CUDA_ERROR_NOT_INITIALIZED
LIBRARY = "libcuda.so.1"

_ask: Callable[[], bool] | None = None
_pretended = False


def up() -> bool:
    """Whether somebody in this process has initialised the CUDA driver. False where that cannot be known."""
    if _ask is not None:
        return _ask()
    return _more_libraries() and _find()


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
    ctypes = sys.modules["ctypes"]
    try:
        library = ctypes.CDLL(LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False  # not in the process, so certainly not initialised
    get_count, count = library.cuDeviceGetCount, ctypes.c_int()

    def ask() -> bool:
        return bool(get_count(ctypes.byref(count)) != NOT_INITIALISED)

    _ask = ask
    return ask()


_count: Callable[[], int] | None = None
_counted = -1


def _more_libraries() -> bool:
    """Whether a library was loaded since the last look. To look for a name that is not there costs the linker 20 us, this 1 us."""
    global _count, _counted
    if _count is None:
        ctypes = sys.modules.get("ctypes")  # torch and every CUDA library of Python load it: without it nobody woke the driver
        if not watched() or not hasattr(ctypes, "cdll"):  # nearly its last name: a probe may come while it is being imported
            return False
        _count = _counter(ctypes)
    before, _counted = _counted, _count()
    return before != _counted or _counted == 0


def _counter(ctypes: Any) -> Callable[[], int]:
    """A function that asks the dynamic linker how many libraries it ever loaded here; 0 where it does not say."""

    class Info(ctypes.Structure):  # type: ignore[misc]  # dl_phdr_info, up to the member wanted
        _fields_ = (
            ("addr", ctypes.c_void_p),
            ("name", ctypes.c_char_p),
            ("phdr", ctypes.c_void_p),
            ("phnum", ctypes.c_ushort),
            ("adds", ctypes.c_ulonglong),
        )

    found = [0]

    def first(info: Any, size: int, _data: None) -> int:
        found[0] = info[0].adds if size >= ctypes.sizeof(Info) else 0
        return 1  # one library is enough: each says the same

    visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)(first)
    # PyDLL keeps the interpreter's lock. Without it, another thread could hold that lock and wait for the linker's, which is held here.
    walk = getattr(ctypes.PyDLL(None), "dl_iterate_phdr", None)

    def count() -> int:
        if walk is not None:
            walk(visit, None)
        return found[0]

    return count


def simulated() -> bool:
    """Whether the answers come from the simulated device."""
    return _pretended
