"""The exceptions of cudaguard.

CudaGuardError(RuntimeError)
├── CudaForkError        fork-after-init, inherited-tensor
├── WorkerOutputError    unsendable-output, pin-cuda-output, ipc-broken
└── CudaInitError        forbidden-init
CudaForkWarning(RuntimeWarning)

They subclass what PyTorch raises in the same places, so code that catches RuntimeError still does.
This module imports nothing, until a notebook shows an error.
"""

from __future__ import annotations


class CudaGuardError(RuntimeError):
    """A failure of CUDA and processes, explained.

    Built from one string, because PyTorch's ``ExceptionWrapper`` rebuilds a worker's exception from its text alone.
    There is no attribute called ``message``: ``ExceptionWrapper`` would then call the class with that keyword.

    Attributes:
        finding: the finding as the report has it (a dict, see the README), or None if the error was made without one.
    """

    def __init__(self, text: str = "", finding: dict[str, object] | None = None) -> None:
        super().__init__(text)
        self.finding = finding

    def _render_traceback_(self) -> list[str]:
        """What IPython and Jupyter show: the text, which names the lines that count, and not the frames of loaders and pickles."""
        from . import _notebook

        return _notebook.shown(self)

    def __reduce__(self) -> tuple[type[CudaGuardError], tuple[str, dict[str, object] | None]]:
        return type(self), (str(self), self.finding)


class CudaForkError(CudaGuardError):
    """A forked child touched CUDA, or CUDA data, although its parent had woken CUDA before the fork."""


class WorkerOutputError(CudaGuardError):
    """A worker's output cannot reach the parent."""


class CudaInitError(CudaGuardError):
    """CUDA was initialised or queried where :func:`cudaguard.forbid_init` forbids it."""


class CudaForkWarning(RuntimeWarning):
    """What :class:`CudaForkError` says, in mode ``warn``."""
