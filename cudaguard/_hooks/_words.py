"""What torch, and other CUDA libraries, say in a process that was forked from one whose driver was up."""

from __future__ import annotations

import re

from .. import _places, _source
from .._places import USER

# torch, in any version. The driver's own answer comes through a door that leads past torch's check; the rest is that check's.
RAW = re.compile(r"(?:CUDA|HIP) error: (?:initialization error|driver shutting down|invalid device context|context is destroyed)")
CHECKED = re.compile(r"Cannot re-initialize CUDA in forked subprocess|CUDA driver initialization failed|No CUDA GPUs are available")
# Another library: CUDA's name, and beside it what is wrong. Far from each other they are a program's own words.
NAME = r"(?:[Cc][Uu][Dd][Aa]|\bcu[A-Z]|\b[Hh][Ii][Pp]|NCCL)"
OTHERS_SAY = re.compile(
    rf"{NAME}[^\n]{{0,80}}(?:initialization error|driver shutting down)"
    r"|\b(?:CU|HIP|NCCL)\w*_NOT_INITIALIZED|\b(?:cuda|hip)Error\w*Initiali[sz]"
    r"|\bCUDA initialized before forking"  # numba
    r"|\bno CUDA-capable device|\bcuInit\b"
    r"|[Nn]o supported devices found for platform CUDA|Unable to initialize backend 'cuda'"  # jax
    r"|\b0 active drivers"  # triton
)
# A program that has yet to load its own engine may say so too: this counts where somebody else says it, as pycuda does.
MAY_BE_ANYBODYS = re.compile(
    r"(?:\bCUDA(?: driver| runtime| context)?|\bcu[A-Z]\w+)(?: failed:| error:?| error \d+:?|:)?(?: is| was)? not initialized"
)


def slug(error: BaseException) -> str | None:
    """What an exception is a case of, going by its words; None where they do not speak of CUDA and a fork."""
    said = _text(error)
    if isinstance(error, RuntimeError) and (RAW.match(said) or CHECKED.match(said)):
        return "inherited-tensor" if RAW.match(said) else "fork-after-init"
    others = OTHERS_SAY.search(said) or (MAY_BE_ANYBODYS.search(said) and not _own_words(error))
    return "foreign-library" if others else None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the program's own class: what it cannot say is no fault of the guard's
        return ""


def _own_words(error: BaseException) -> bool:
    """Whether a `raise` in the program's own code made the exception."""
    trace = _places.innermost(error)
    if trace is None:
        return False
    file = trace.tb_frame.f_code.co_filename
    return _places.kind(file) == USER and _source.statement(file, trace.tb_lineno).startswith("raise")
