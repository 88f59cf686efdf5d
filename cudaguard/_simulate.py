"""``CUDAGUARD_SIMULATE=N``: behave as if N CUDA devices were here. Nothing of the shadow is imported unless that is wanted."""

from __future__ import annotations

import ctypes
import glob
import os
import sys
from collections.abc import Mapping

NAME = "CUDAGUARD_SIMULATE"
MOST = 64
_NVML = "libnvidia-ml.so.1"
_started = 0


def wanted(environ: Mapping[str, str]) -> int | None:
    """How many devices the environment asks for; None if it does not, or asks for what is not legal (which is said once)."""
    text = environ.get(NAME, "").strip()
    if text in ("", "0"):
        return None
    if text.isascii() and text.isdecimal() and 0 < int(text) <= MOST:
        return int(text)
    print(f"cudaguard: {NAME}={text!r} is not a number from 1 to {MOST} (or 0 for none); nothing is simulated", file=sys.stderr)
    return None


def active() -> bool:
    """Whether this process has a simulated device."""
    return _started > 0


def start(count: int) -> bool:
    """Give this process `count` simulated devices. Called once, after ``import torch`` and before anything wraps its functions."""
    global _started
    reason = _real()
    if reason:
        print(f"cudaguard: {NAME} is ignored: {reason}", file=sys.stderr)
        return False
    if _started:
        return True
    reason = _unfit()
    if reason:
        print(f"cudaguard: {NAME} is ignored: {reason}", file=sys.stderr)
        return False
    from cudaguard import _driver, _shadow
    from cudaguard._shadow._driver import Simulated

    policy = Simulated(count)
    _shadow.install(policy)
    _driver.pretend(policy.is_up)
    _started = count
    return True


def _real() -> str:
    """Why a real GPU may be in sight, or "". The driver is not woken to decide: NVML and device files know."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "unset").strip() in ("", "-1"):
        return ""
    files = glob.glob("/dev/nvidia[0-9]*") + glob.glob("/dev/dxg")
    if files:
        return f"{files[0]} says that a real GPU is here (hide it with CUDA_VISIBLE_DEVICES=)"
    if _nvml_count():
        return "NVML sees a real GPU (hide it with CUDA_VISIBLE_DEVICES=)"
    return ""


def _unfit() -> str:
    """Why this torch cannot be made to simulate, or "". Nothing has been changed in it by then."""
    try:
        from cudaguard._shadow import _parts  # noqa: F401  # its import fails for want of anything needed
    except (AttributeError, ImportError) as error:
        return f"this torch lacks what the simulated device stands on ({error})"
    return ""


def _nvml_count() -> int:
    try:
        library = ctypes.CDLL(_NVML)
    except OSError:
        return 0
    number = ctypes.c_uint(0)
    if library.nvmlInit_v2() != 0:
        return 0
    library.nvmlDeviceGetCount_v2(ctypes.byref(number))
    library.nvmlShutdown()
    return number.value
