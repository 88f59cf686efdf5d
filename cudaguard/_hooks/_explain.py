"""Explain an exception at the edge of a child, while Python still has it in hand."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from types import FrameType
from typing import Any

from .. import _calls, _places, _respond, _source, _verdict
from .._journal import Fork
from .._places import Site
from .._respond import safe
from .._verdict import Finding, Touch
from ..errors import CudaGuardError
from . import _notice

# What other CUDA libraries say in a bad child.
OTHERS_SAY = re.compile(
    r"initialization error|not initialized|NOT_INITIALIZED|InitializationError|initialized before forking"
    r"|driver shutting down|no CUDA-capable device|cuInit"
    r"|[Nn]o supported devices found for platform CUDA|Unable to initialize backend 'cuda'"  # jax
    r"|\b0 active drivers"  # triton
)
CUDA = re.compile(r"(?i:cuda)|\bcu[A-Z]|active drivers|\bhip|\bHIP")
# What torch says in a bad child, in any version, when a door leads past its own check.
TORCH_SAYS = re.compile(
    r"^((?:CUDA|HIP) error: (initialization error|driver shutting down|invalid device context|context is destroyed)"
    r"|Cannot re-initialize CUDA in forked subprocess|CUDA driver initialization failed|No CUDA GPUs are available)"
)


def explain(error: BaseException) -> BaseException:
    """The exception that should go on in place of this one: the guard's where CUDA and a fork are to blame, else the same.

    torch's own is replaced, and becomes the cause. Another library's is annotated: its callers may match on its type.
    """
    return _explain(error) or error


@safe(None)
def _explain(error: BaseException) -> BaseException | None:
    if isinstance(error, CudaGuardError):
        return error
    fork = _notice.bad()
    if fork is None or not isinstance(error, Exception):
        return None
    said = str(error)
    if isinstance(error, RuntimeError) and TORCH_SAYS.match(said):
        return _judge(error, fork)
    return _annotate(error, fork) if OTHERS_SAY.search(said) and CUDA.search(said) else None


def _judge(error: RuntimeError, fork: Fork) -> CudaGuardError | None:
    site = _places.raised_at(error, _notice.journal().cut())
    slug = "inherited-tensor" if _inherited(error, site) else "fork-after-init"
    return _respond.respond(_finding(slug, site, error, fork), error)


def _annotate(error: Exception, fork: Fork) -> Exception:
    site = _places.raised_at(error, _notice.journal().cut())
    return _respond.annotate(error, _finding("foreign-library", site, error, fork))


def _finding(slug: str, site: Site, error: BaseException, fork: Fork) -> Finding:
    touch = Touch(os.getpid(), _calls.name(site), site, _notice.said(error))
    return _verdict.forked(slug, _notice.journal(), touch, _respond.facts(), fork)


def _inherited(error: BaseException, site: Site) -> bool:
    """Whether a line that failed names a CUDA tensor: in a bad child it can only have been inherited."""
    return any(_on_cuda(value) for frame, line in _failing(error, site) for value in _named(frame, line))


def _failing(error: BaseException, site: Site) -> Iterator[tuple[FrameType, int]]:
    """The frames of a traceback from the user's line on inwards."""
    trace, found = error.__traceback__, _places.library(site)
    while trace is not None:
        found = found or (trace.tb_frame.f_code.co_filename, trace.tb_lineno) == (site.file, site.line)
        if found:
            yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _named(frame: FrameType, line: int) -> Iterator[Any]:
    """The values of the names and attributes on a source line. No property is called."""
    place = Site(frame.f_code.co_filename, line, frame.f_code.co_name)
    for node in ast.walk(_parse(place.code)):
        if isinstance(node, (ast.Name, ast.Attribute)):
            yield _value(frame, node)


def _parse(code: str) -> ast.AST:
    trees = map(_source.tree, (code, code.rstrip(":") + ": pass", code.rstrip("([{,")))
    return next(filter(None, trees), ast.Module([], []))


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
