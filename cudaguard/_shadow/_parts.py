"""All that `install` changes in torch, in order, and what is done without when a torch has changed behind its private names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch

from cudaguard._shadow._patch import wrap

# The tables first, then what makes tensors; torch.device last, since the others want the real class.
NEEDED = "_setup _moves _storage _generators _factories _runtime".split()
ORDER = """_setup _crossing _moves _storage _generators _factories _legacy _nested _autograd _autocast _transforms _ops _runtime _compat""".split()
# The others, and what a program calls that needs one: only such a program is told that it is missing.
ASKED = {
    "_crossing": ("torch.multiprocessing.reductions", "reduce_storage", "CUDA tensors between processes"),
    "_legacy": ("torch", "set_default_tensor_type", "torch.cuda's tensor types"),
    "_nested": ("torch.nested", "nested_tensor", "jagged tensors"),
    "_autograd": ("torch.autograd.function.FunctionCtx", "save_for_backward", "the devices of tensors in autograd Functions"),
    "_autocast": ("torch.autocast", "__init__", "CUDA's autocast"),
    "_transforms": ("torch.func", "vmap", "torch.func"),
    "_ops": ("torch.library.Library", "impl", "operators with a CUDA kernel only"),
    "_compat": ("torch", "compile", "torch.compile and NCCL"),
}
_LACKING = (AttributeError, ImportError, LookupError, TypeError)  # what a name that is gone, or is something else now, leads to


def _load(name: str) -> Any:
    """A part's module, or why there is none. Without one of those needed, importing this module fails: nothing in torch has changed yet."""
    try:
        return importlib.import_module(f"cudaguard._shadow.{name}")
    except _LACKING as error:
        if name in NEEDED:
            raise
        return error


MODULES = {name: _load(name) for name in ORDER}


def install() -> None:
    for name, module in MODULES.items():
        try:
            if isinstance(module, Exception):
                raise module
            module.install()
        except _LACKING as error:
            if name in NEEDED:
                raise
            _miss(name, error)


def _miss(name: str, error: Exception) -> None:
    path, function, what = ASKED[name]
    wrap(_owner(path), function, _noting(f"cudaguard: {what}: not simulated with torch {torch.__version__} ({error})"))


def _owner(path: str) -> Any:
    owner: Any = torch
    for part in path.split(".")[1:]:
        owner = getattr(owner, part, None)
    return owner


def _noting(note: str) -> Callable[[Any], Any]:
    said: list[str] = []

    def make(original: Any) -> Any:
        def noting(*args: Any, **kwargs: Any) -> Any:
            if not said:
                said.append(note)
                print(note, file=sys.stderr)
            return original(*args, **kwargs)

        return noting

    return make
