"""Whether the driver's own answer came of an object that the child inherited, or through a door that leads past torch's check.

Whatever asks torch for CUDA in a bad child is told so in torch's words. The driver's bare answer is given to what torch
does not ask: any use of an inherited object, and a few calls, each of which has a name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from types import FrameType
from typing import Any

from .. import _places, _source
from .._places import GUARD, Site
from . import _notice

# Measured, by version: reference table of torch's doors.
DOORS = re.compile(
    r"\b(?:Generator|Stream|ExternalStream|Event|CUDAGraph|MemPool|(?:as_)?nested_tensor|_?sparse_\w+_tensor\w*|get_device_module"
    r"|current_accelerator|_get_accelerator|_?cuda_?[hH]asPrimaryContext|jit\.load)\s*\(|\bpin_memory\s*[=(]|\btorch\.ops\.|\bops\.aten\."
    r"|\btorch\.device\(\s*\d"
)


def inherited(error: BaseException, site: Site) -> bool:
    """Whether an inherited object is to blame for an exception that the driver's own answer made."""
    if _asked(error):
        return False
    failing = list(_failing(error, site))
    doors = any(DOORS.search(code) for _, code in failing[:1] + failing[-1:])
    return not doors or any(_on_cuda(value) for frame, code in failing for value in _named(frame, code))


def _asked(error: BaseException) -> bool:
    """Whether torch was initialising: where only the driver was up before the fork, its check finds nothing, and the driver answers it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_name != "_lazy_init":
        trace = trace.tb_next
    return trace is not None


def _failing(error: BaseException, site: Site) -> Iterator[tuple[FrameType, str]]:
    """The frames of a traceback from the user's line on inwards, each with the statement it is at. The guard's own are no part of the program."""
    trace, found = error.__traceback__, _places.library(site)
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        found = found or (file, trace.tb_lineno) == (site.file, site.line)
        if found and _places.kind(file) != GUARD:
            yield trace.tb_frame, _source.statement(file, trace.tb_lineno)
        trace = trace.tb_next


def _named(frame: FrameType, code: str) -> Iterator[Any]:
    """The values of the names and attributes in a statement. No property is called."""
    for node in ast.walk(_parse(code)):
        if isinstance(node, (ast.Name, ast.Attribute)):
            yield _value(frame, node)


def _parse(code: str) -> ast.AST:
    """A statement, or the head of one that holds others."""
    return next(filter(None, map(_source.tree, (code, f"{code} pass", f"{code.removeprefix('el')} pass"))), ast.Module([], []))


def _value(frame: FrameType, node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        held = getattr(_value(frame, node.value), "__dict__", None) or {}
        tables = (held, held.get("_parameters"), held.get("_buffers"), held.get("_modules"))
        return next((table[node.attr] for table in tables if isinstance(table, dict) and node.attr in table), None)
    return None


def _on_cuda(value: Any) -> bool:
    """Whether a value is a tensor, a module or a generator on CUDA, or a short container of such."""
    torch = _notice.module("torch")
    if isinstance(value, (list, tuple)):
        return any(_on_cuda(item) for item in value[:8])
    if isinstance(value, torch.nn.Module):
        return any(parameter.is_cuda for parameter in value.parameters())
    if isinstance(value, torch.Generator):
        return bool(value.device.type == "cuda")
    return isinstance(value, torch.Tensor) and value.is_cuda
