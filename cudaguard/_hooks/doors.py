"""Doors that go straight to the driver, past torch's lazy initialisation: noted by asking the driver before and after.

Only Python functions, and a class's own __new__: replacing a class breaks isinstance in Dynamo and pickling, replacing
torch.get_device_module breaks torch.compile(fullgraph=True). What is not here is bracketed by the probes at imports and forks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .. import _driver
from .._journal import DRIVER
from .._respond import safe
from . import _notice
from ._patch import Patches

DOORS = (
    ("torch.nested", "nested_tensor"),
    ("torch.nested", "as_nested_tensor"),
    ("torch.distributed", "init_process_group"),
)


def install(patches: Patches) -> None:
    """Watch the doors that are functions, and the constructor of CUDA streams."""
    for module, name in DOORS:
        patches.wrap(module, name, _door)
    stream = getattr(_notice.module("torch.cuda"), "Stream", None)
    if stream is not None and "__new__" in vars(stream):
        patches.put_static(stream, "__new__", _door(stream.__new__))


def _door(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def door(*args: Any, **kwargs: Any) -> Any:
        if _known():
            return original(*args, **kwargs)
        return _notice.call(_pass, original, *args, **kwargs)

    return door


@safe(True)
def _known() -> bool:
    """Whether there is nothing to look for: somebody woke the driver already, or it is useless here."""
    return bool(_notice.journal().steps) or _notice.bad() is not None or _notice.woken()


def _pass(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result = original(*args, **kwargs)
    _after()
    return result


@safe(None)
def _after() -> None:
    if _driver.up():
        _notice.rose(DRIVER)
