"""``CUDAGUARD_SIMULATE=N``: behave as if N CUDA devices were here. Nothing of the shadow is imported unless that is wanted."""

from __future__ import annotations

import ctypes
import glob
import itertools
import os
import sys
from collections.abc import Mapping

NAME = "CUDAGUARD_SIMULATE"
MASK = "CUDA_VISIBLE_DEVICES"
GIVEN = "_CUDAGUARD_MASK"  # the mask that the first process was started with, for its children: "=0,1", or "unset"
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

    policy = Simulated(count, given())
    _shadow.install(policy)
    _driver.pretend(policy.is_up)
    _started = count
    return True


def given() -> str | None:
    """The mask that the program was started with. It hides a real GPU, so that the simulation may start, and no pretended one.

    What the program wrote over it since then is the program's own, also where that was before torch was imported.
    """
    if GIVEN not in os.environ:
        mask = _started_with().get(MASK)
        os.environ[GIVEN] = "unset" if mask is None else f"={mask}"
    return os.environ[GIVEN][1:] if os.environ[GIVEN].startswith("=") else None


def _started_with() -> Mapping[str, str]:
    """The environment as this process was given it: Linux keeps that. Where it does not, or somebody wrote over it, as it is now."""
    try:
        with open("/proc/self/environ", "rb") as block:
            entries = [os.fsdecode(entry).partition("=") for entry in block.read().split(b"\0")]
    except OSError:
        return os.environ
    first = {name: value for name, _, value in entries}
    return first if NAME in first and first[NAME] == os.environ.get(NAME) else os.environ


def masked(mask: str | None, count: int) -> int:
    """How many of `count` devices a mask leaves, as the driver reads it: up to the first that is not there, and none if one is named twice."""
    if mask is None or mask.startswith(("GPU-", "MIG-")):  # nobody knows the pretended ones by such names
        return count
    parts = [part.strip() for part in mask.split(",")]
    named = list(itertools.takewhile(lambda part: part.isdecimal() and int(part) < count, parts))
    return len(named) if len(set(named)) == len(named) else 0


def _real() -> str:
    """Why a real GPU may be in sight, or "". The driver is not woken to decide: NVML and device files know."""
    if os.environ.get(MASK, "unset").strip() in ("", "-1"):
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
