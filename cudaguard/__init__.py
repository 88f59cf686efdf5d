"""cudaguard: says which line initialised CUDA, which line forked, which line touched it, and what to paste.

Importing it turns the guard on, in mode `error` unless `CUDAGUARD` in the environment says otherwise. `enable()` does
the same, where an import for its effect alone would be dropped by a linter or made lazy.

PYTEST_DONT_REWRITE: the package has no assertions to show, and pytest would warn where the guard was on before it.
"""

from __future__ import annotations

from . import _activate, collate
from ._activate import disable, enable
from ._forbid import forbid_init
from ._public import fork_safe, ignore, origin, report, reroute
from .errors import CudaForkError, CudaForkWarning, CudaGuardError, CudaInitError, WorkerOutputError

__version__ = "0.1.0"
__all__ = [
    "CudaForkError",
    "CudaForkWarning",
    "CudaGuardError",
    "CudaInitError",
    "WorkerOutputError",
    "collate",
    "disable",
    "enable",
    "forbid_init",
    "fork_safe",
    "ignore",
    "origin",
    "report",
    "reroute",
]

_activate.on_import()


def load_ipython_extension(shell: object) -> None:
    """What `%load_ext cudaguard` calls: the guard is on by now; this adds `%cudaguard` and `%%cudaguard_trace`."""
    from . import _notebook

    _notebook.load(shell)


def unload_ipython_extension(shell: object) -> None:
    """What `%unload_ext cudaguard` calls: the guard goes off."""
    disable()
