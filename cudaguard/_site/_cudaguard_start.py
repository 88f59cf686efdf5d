"""Arm the guard at the start of the interpreter, if the environment asks for it.

Runs in every interpreter of an environment that has cudaguard, so it imports only what is loaded already (sys, os), and the package itself
not before a library that can initialise CUDA is imported. It cannot live inside the package: importing that turns the guard on.

PYTEST_DONT_REWRITE: pytest would warn in every run that it came too late to rewrite the assertions of this file.
"""

import os
import sys

# The name alone makes type checkers read the branch; importing typing would cost every start some milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

MODES = ("off", "record", "warn", "error", "reroute", "respawn")
ALIASES = {"0": "off", "1": "error"}

# Libraries that can initialise CUDA. The first of them to be imported brings the guard in, just before itself.
TRIGGERS = ("torch", "cupy", "numba", "jax", "tensorflow", "cuda", "triton", "faiss", "onnxruntime", "pycuda", "warp")

# Set where this process or an ancestor has complained about a wrong value: a hundred workers need not say it again, nor the package.
TOLD = "_CUDAGUARD_COMPLAINED"


class Watcher:
    """Import the guard when the first of TRIGGERS is looked up.

    A plain class: importing importlib.abc for its base would cost every start of the interpreter 20 ms.
    """

    def find_spec(self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None) -> "ModuleSpec | None":
        if name not in TRIGGERS:
            return None
        try:
            sys.meta_path.remove(self)
        except ValueError:  # another thread was faster
            return None
        _import_guard()
        return _look_again(name, path, target)


def start() -> None:
    """Insert the watcher if the environment asks for the guard.

    Never raises: an exception here would be shown at every start, an exit would stop the interpreter. May be called any number of times: a
    virtual environment runs each .pth file twice.
    """
    try:
        if not wanted(os.environ):
            return
        if os.environ.get("CUDAGUARD_FORBID"):  # watches imports from the first one on
            _import_guard()
        elif not any(isinstance(finder, Watcher) for finder in sys.meta_path):
            sys.meta_path.insert(0, Watcher())
    except Exception as error:
        _say(f"not active: {error!r}")


def wanted(environ: "MutableMapping[str, str]") -> bool:
    """Does the environment ask for the guard, for simulated devices, or forbid CUDA? Complains once where CUDAGUARD is not a mode."""
    mode = environ.get("CUDAGUARD", "")
    simulate = environ.get("CUDAGUARD_SIMULATE", "")
    forbid = environ.get("CUDAGUARD_FORBID", "")
    # Under python -E and -I this file still runs and could read the variables, but the user asked for none to count.
    if not (mode or simulate or forbid) or sys.flags.ignore_environment:
        return False
    mode = ALIASES.get(mode, mode or "error")
    if mode not in MODES:
        _complain(mode, environ)
        return False
    return mode != "off" or bool(simulate)


def _complain(value: str, environ: "MutableMapping[str, str]") -> None:
    if environ.get(TOLD) is None:
        environ[TOLD] = "1"
        _say(f"CUDAGUARD={value!r} is not a mode, so the guard stays off; legal: {' '.join(MODES)}, 0 (off), 1 (error)")


def _import_guard() -> None:
    try:
        import cudaguard  # noqa: F401  (importing it turns it on)
    except Exception as error:
        _say(f"not active: {error!r}")


def _look_again(name: str, path: "Sequence[str] | None", target: "ModuleType | None") -> "ModuleSpec | None":
    """Ask the finders from the top.

    The guard has put its own before the place where the import system now stands, and they must see this module too.
    """
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)  # Python 3.10 and 3.11 still allow finders without it
        spec: ModuleSpec | None = find(name, path, target) if find else None
        if spec is not None:
            return spec
    return None


def _say(text: str) -> None:
    if sys.stderr is not None:  # pythonw has none, and print would then write to stdout
        print(f"cudaguard: {text}", file=sys.stderr)
