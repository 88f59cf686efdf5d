"""Doors that go straight to the driver, past torch's lazy initialisation: noted by asking the driver before and after.

Only Python functions, and a class's own __new__: replacing a class breaks isinstance in Dynamo and pickling, replacing
torch.get_device_module breaks torch.compile(fullgraph=True). What is not here is bracketed by the probes at imports and forks.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from .. import _driver
from .._journal import DRIVER
from .._respond import safe
from ..errors import CudaInitError
from . import _notice, _refuse
from ._patch import Patches

DOORS = (
    ("torch.nested", "nested_tensor"),
    ("torch.nested", "as_nested_tensor"),
    ("torch.distributed", "init_process_group"),
    ("torch.distributed", "new_group"),
    ("torch.__config__", "show"),  # asks the CUDA runtime for its version; libraries read their build flags in it while they are imported
)

_inside = threading.local()


def install(patches: Patches) -> None:
    """Watch the doors that are functions, and the constructor of CUDA streams."""
    for module, name in DOORS:
        watch(patches, module, name, f"{module}.{name}")
    stream = getattr(_notice.module("torch.cuda"), "Stream", None)
    if stream is not None and "__new__" in vars(stream):
        patches.put_static(stream, "__new__", door(stream.__new__))


def watch(patches: Patches, module: str, name: str, call: str = "") -> None:
    """Replace a function where users look it up, and in the module it is defined in: else it would no longer pickle."""
    original = getattr(sys.modules.get(module), name, None)  # a module may be loaded late, or be gone
    if original is None or isinstance(original, type):
        patches.unwatched.append(f"{module}.{name}")
        return
    watched = door(original, call)
    home = sys.modules.get(getattr(original, "__module__", None) or "")
    for holder in {id(holder): holder for holder in (sys.modules[module], home)}.values():
        if getattr(holder, name, None) is original:
            patches.put(holder, name, watched)


def door(original: Callable[..., Any], call: str = "") -> Callable[..., Any]:
    """The function, watched. `call` is its name as users write it; "" takes the name on the user's line."""

    @functools.wraps(original)
    def door(*args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, "door", False) or _known():  # a door behind a door: the outer one was the user's
            return original(*args, **kwargs)
        _inside.door = True
        try:
            return _notice.call(_through, original, call, args, kwargs)
        finally:
            _inside.door = False

    return door


@safe(True)
def _known() -> bool:
    """Whether there is nothing to look for: somebody woke the driver already, or it is useless here."""
    return bool(_notice.journal().steps) or _notice.bad() is not None or _notice.woken()


def _through(original: Callable[..., Any], call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        result = original(*args, **kwargs)
    except BaseException:
        _after(call)  # a call that failed may have woken the driver all the same
        raise
    refusal = _after(call)
    if refusal is not None:
        raise refusal
    return result


@safe(None)
def _after(call: str) -> CudaInitError | None:
    """Note whether the driver woke behind a door; the error where that is forbidden. Not before: most calls wake nothing."""
    if not _driver.up() or _notice.journal().steps:
        return None
    _notice.rose(DRIVER, None, call)
    return _refuse.error(DRIVER, call)
