"""Turn the guard on and off, once, whichever way was used. The only room that changes what is in force."""

from __future__ import annotations

import os
import sys

from . import _config
from ._config import OFF, Config, ConfigError

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without the time that importing typing takes
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from ._journal import Start

VARIABLES = {"CUDAGUARD": "mode", "CUDAGUARD_REPORT": "report", "CUDAGUARD_TRACE": "trace"}

_handles: list[Handle] = []
_user_environ = {name: os.environ.get(name) for name in VARIABLES}
_written: dict[str, str | None] = {}


class Handle:
    """One call of :func:`enable`. `disable()`, or leaving the `with` block, restores what was in force before it."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def disable(self) -> None:
        """Take this call back; a second time does nothing."""
        if self in _handles:
            _handles.remove(self)
            _apply()

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.disable()

    def __repr__(self) -> str:
        return f"<cudaguard mode={self.config.mode!r} {'in force' if _handles and _handles[-1] is self else 'not in force'}>"


def enable(mode: str | None = None, *, report: str | os.PathLike[str] | None = None, trace: str | os.PathLike[str] | None = None) -> Handle:
    """Turn the guard on.

    Args:
        mode: `record`, `warn`, `error`, `reroute`, `respawn` or `off`; None takes `CUDAGUARD` from the environment, else `error`.
        report: a file to which every process appends its findings as JSON Lines; None takes `CUDAGUARD_REPORT`.
        trace: a file for a Chrome trace; None takes `CUDAGUARD_TRACE`.

    Returns a handle: `.disable()` restores what was in force before; it also works in `with`.
    `CUDAGUARD=off` in the environment wins over every call: the handle then changes nothing.
    Raises ValueError for a mode or variable that is not legal; the text names the legal ones.
    """
    if mode is not None:
        _config.mode(mode)
    config = _read(mode)
    handle = Handle(config._replace(report=_config.path(report) or config.report, trace=_config.path(trace) or config.trace))
    if not forbidden():
        _handles.append(handle)
        _apply()
    return handle


def disable() -> None:
    """Turn the guard off and restore every name it replaced."""
    _handles.clear()
    _apply()


def forbidden() -> bool:
    """Whether the user's environment, not our own copy of the mode in it, says off."""
    value = _config.environ().get("CUDAGUARD")
    ours = "CUDAGUARD" in _written and value == _written["CUDAGUARD"]
    return _config.forced_off({"CUDAGUARD": (_user_environ["CUDAGUARD"] if ours else value) or ""})


def on_import() -> None:
    """What `import cudaguard` does: on as the environment says, else in mode `error`. Never raises."""
    try:
        config = _read(None)
    except ConfigError as error:
        _complain(error)
        return
    if config.mode == "off":
        if _config.environ().get("CUDAGUARD_SIMULATE"):  # works without the guard: that is how stock PyTorch's failures are shown
            _install()
    elif not _handles:
        enable()


def arrive(config: Config, start: Start) -> None:
    """Go on in a child that was started by spawn or forkserver as its parent was."""
    if config != _config.current() and not forbidden():
        _handles.append(Handle(config))
        _apply()
    from . import _journal

    _journal.current.start = start


def _read(mode: str | None) -> Config:
    """The configuration that the environment and a call ask for."""
    environ = dict(_config.environ())
    if mode is not None:
        environ["CUDAGUARD"] = mode
    return _config.from_environ(environ)


def _complain(error: ConfigError) -> None:
    """Say once, in the first process only, that a variable was wrong."""
    if os.environ.get("_CUDAGUARD_COMPLAINED") is None:
        os.environ["_CUDAGUARD_COMPLAINED"] = "1"
        print(f"cudaguard: {error}; the guard stays off", file=sys.stderr)


def _apply() -> None:
    """Put the newest handle's configuration in force, here and for the children to come."""
    config = _handles[-1].config if _handles else OFF
    was = _config.current().mode
    _config.use(config)
    _share(config)
    if config.mode == "off":
        _uninstall()
    elif was == "off":
        _install()
    elif config.trace is not None and _watcher in sys.meta_path:  # a trace tells of all processes, also those made before CUDA can be used
        _stop_waiting()
        _arm()


def _share(config: Config) -> None:
    """Let children that start anew find the same settings; back to the user's own when there is no handle."""
    for name, field in VARIABLES.items():
        value = getattr(config, field) if _handles else _user_environ[name]
        _written[name] = value
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _install() -> None:
    """Install the hooks now if a CUDA library is loaded, else when the first one is imported: until then nothing can go wrong."""
    if _config.current().forbid:  # the import under way when the first one comes is held to it too, so it must be watched from its start
        from ._hooks import imports

        imports.install()
    if any(name in sys.modules for name in LIBRARIES) or _config.current().trace is not None:
        _arm()
    else:
        _wait()


def _arm() -> None:
    """Watch; a fault of the guard's own must not make the program's import fail."""
    try:
        _watch()
    except Exception as fault:
        from . import _respond

        _respond.step_aside(fault)


def _watch() -> None:
    """Watch. The simulated device starts first, so that the hooks wrap it."""
    from wrapt import when_imported

    if _config.environ().get("CUDAGUARD_SIMULATE"):
        when_imported("torch")(_simulate)
    if _config.current().mode != "off":
        from . import _hooks, _respond

        _respond.forget()
        _note_late()
        _hooks.install()


def _note_late() -> None:
    """Whether somebody woke CUDA before the guard came on: then nobody saw who."""
    from . import _driver, _journal, _places

    cuda: Any = sys.modules.get("torch.cuda")
    up = _driver.up() or getattr(cuda, "_initialized", False) or (cuda is not None and cuda._is_in_bad_fork())
    book = _journal.current
    if up and not book.steps and not book.forks and book.late is None:
        book.late = _journal.Late(os.getpid(), _places.here())


def _uninstall() -> None:
    _stop_waiting()
    if "cudaguard._hooks" in sys.modules:
        from . import _hooks

        _hooks.uninstall()


_simulating = False


def _simulate(_module: object = None) -> None:
    global _simulating
    if _simulating:
        return
    _simulating = True
    try:
        _start_device()
    except Exception as fault:  # a hook that raised would make `import torch` fail
        from . import _respond

        print(f"cudaguard: the simulated device could not start: {type(fault).__name__}: {fault}", file=sys.stderr)
        _respond.step_aside(fault)


def _start_device() -> None:
    from . import _simulate as device

    count = device.wanted(os.environ)
    if count:
        device.start(count)


# The first of these to be imported arms the guard.
LIBRARIES = ("torch", "cupy", "numba", "jax", "tensorflow", "cuda", "triton", "faiss", "onnxruntime", "pycuda", "warp")


class Watcher:
    """Waits for a CUDA library. A plain class: wrapt and importlib.abc are too slow to load before they are needed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Never provides a module of its own."""
        if name not in LIBRARIES:
            return None
        _stop_waiting()
        _arm()
        return _ask_again(name, path, target)


def _ask_again(name: str, path: Any, target: Any) -> Any:
    """Ask all finders anew: wrapt's has just joined in front of the list, and this look-up has passed it by."""
    found = (finder.find_spec(name, path, target) for finder in list(sys.meta_path))
    return next((spec for spec in found if spec is not None), None)


_watcher = Watcher()


def _wait() -> None:
    if _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _watcher)


def _stop_waiting() -> None:
    if _watcher in sys.meta_path:
        sys.meta_path.remove(_watcher)
