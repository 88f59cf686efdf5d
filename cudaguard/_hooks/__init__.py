"""The only rooms that touch torch, os and multiprocessing. They notice things and write them down.

One module per thing hooked, one table of names in each. TABLE says which is installed when which module is loaded.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable

from .. import _config, _respond
from . import _notice, backends, foreign, processes
from ._patch import Patches

patches = Patches()
_installed: set[str] = set()
_waiting: set[str] = set()  # for these there is a hook on the import


def _cuda() -> None:
    from . import cuda, doors

    cuda.install(patches)
    doors.install(patches)


def _children() -> None:
    from . import children

    children.install(patches)


def _loader() -> None:
    from . import loader, receiving

    loader.install_torch(patches)
    receiving.install(patches)


def _stateful() -> None:
    from . import loader

    loader.install_stateful(patches)


def _processes(module: str) -> None:
    processes.install(patches, module)


def _foreign(module: str) -> None:
    foreign.install(patches, module)


def _backend(module: str) -> None:
    backends.install(patches, module)


DEEP = "_CUDAGUARD_DEEP"  # set by `trace --deep`
# What `check` and `run --inline-workers` change, only where their variables say so.
TRIED = {"_CUDAGUARD_STEPS", "_CUDAGUARD_INLINE", "_CUDAGUARD_START_METHOD"}
TRIALS = (  # trigger, needed (a name of its own: a room is known by it), the module that is changed
    ("multiprocessing.context", "multiprocessing.context", "multiprocessing.context"),
    ("torch", "torch.utils.data.dataloader", "torch.utils.data.dataloader"),
    (
        "torchdata.stateful_dataloader.stateful_dataloader",
        "torchdata.stateful_dataloader.worker",
        "torchdata.stateful_dataloader.stateful_dataloader",
    ),
)


def _trial(module: str) -> None:
    from . import trials

    (trials.install_context if module.endswith(".context") else trials.install_loaders)(patches, module)


# When this module is loaded, install that. `torch` stands for its end: by then its parts are whole.
TABLE: tuple[tuple[str, str, Callable[[], None]], ...] = (
    ("torch", "torch.cuda", _cuda),
    ("multiprocessing.spawn", "multiprocessing.spawn", _children),
    ("torch", "torch.utils.data._utils.worker", _loader),
    ("torchdata.stateful_dataloader.stateful_dataloader", "torchdata.stateful_dataloader.stateful_dataloader", _stateful),
    *((module, module, functools.partial(_processes, module)) for module in processes.MODULES),
    *((trigger, needed, functools.partial(_trial, module)) for trigger, needed, module in TRIALS if TRIED & set(os.environ)),
    *((module, module, functools.partial(_foreign, module)) for module in foreign.MODULES),
    *((backend.module, backend.module, functools.partial(_backend, backend.module)) for backend in backends.BACKENDS),
)


def install() -> None:
    """Install every room, now or when its module is loaded. A CUDA library is being imported, or is there."""
    from wrapt import when_imported

    from . import forks, imports

    forks.install()
    imports.install()
    for trigger, needed, room in TABLE:
        # wrapt forgets no hook: a block that arms the guard a thousand times must not add to them
        if trigger in sys.modules or needed not in _waiting:
            _waiting.add(needed)
            when_imported(trigger)(functools.partial(_guarded, needed, room))
    if _config.current().trace is not None and "last look" not in _waiting:
        _waiting.add("last look")
        atexit.register(_notice.last_look)
    if DEEP in os.environ:
        _deepen()


@_respond.safe(None)
def _deepen() -> None:
    from .. import _deep

    _deep.start()


def _guarded(needed: str, room: Callable[[], None], _module: object) -> None:
    """Install one room, once; a hook that raised would make the program's import fail."""
    if needed in _installed or not _wanted():
        return
    try:
        __import__(needed)
        room()
        _installed.add(needed)
    except Exception as fault:
        _respond.step_aside(fault)


def _wanted() -> bool:
    return _config.current().mode != "off"


def uninstall() -> None:
    """Put back every replaced name."""
    from . import imports

    imports.uninstall()
    patches.restore()
    _installed.clear()


def status() -> dict[str, list[str]]:
    """What is replaced, and what this release of torch has no name for."""
    return {"patched": patches.names(), "not watched": list(patches.unwatched), "loaded": [name for _, name, _ in TABLE if name in sys.modules]}
