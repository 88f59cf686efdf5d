"""What `forbid_init` and CUDAGUARD_FORBID forbid: the blocks in force, and the judgement of what asks for CUDA inside one.

Without a block and without the variable, a hook pays for one look at an empty list.
"""

from __future__ import annotations

import ast
import linecache
import os

from .. import _calls, _config, _journal, _places, _respond, _source, _verdict
from .._journal import DRIVER, INITIALISED, QUERIED, Step
from .._places import Site
from .._respond import safe
from .._verdict import Finding
from ..errors import CudaInitError
from . import _notice

IMPORTING = ("_load_unlocked", "_exec", "_call_with_frames_removed")  # frames of importlib that are there while a module's body runs
WOULD = {QUERIED: "would ask the CUDA driver", DRIVER: "has woken the CUDA driver", INITIALISED: "would initialise CUDA"}


class Block:
    """A `forbid_init` in force. It binds the process that entered it alone: a child forked inside may outlive it."""

    def __init__(self, site: Site, allow_queries: bool, by: str = "") -> None:
        self.site, self.allow_queries, self.by = site, allow_queries, by
        self.pid = os.getpid()
        self.began = len(_notice.journal().steps)
        self.refused: list[CudaInitError] = []  # the program may have caught them

    def forbids(self, tier: str) -> bool:
        """Whether going up to a tier, here and now, is forbidden."""
        return self.pid == os.getpid() and not (self.allow_queries and tier == QUERIED)

    @property
    def why(self) -> str:
        """Who forbids it, for the text."""
        by = self.by or f"cudaguard.forbid_init, in force since {_places_text(self.site)},"
        return f"{by} forbids that in every thread of this process."


def _places_text(site: Site) -> str:
    from .. import _text

    return _text.place(site)


blocks: list[Block] = []
IMPORTS = "CUDAGUARD_FORBID=import forbids that while a module is being imported."


def error(tier: str, call: str = "") -> CudaInitError | None:
    """The error for a line that is about to take CUDA up to a tier, or has just done so; None where nothing forbids it."""
    return _judge(tier, call) if blocks or _config.current().forbid else None


@safe(None)
def _judge(tier: str, call: str) -> CudaInitError | None:
    block = _binding(tier)
    if block is None and not (_config.current().forbid and importing()):
        return None
    site = _notice.site()
    step = Step(os.getpid(), tier, call or _calls.name(site), site, None, 0.0)
    return _refuse(step, block)


def _binding(tier: str) -> Block | None:
    return next((block for block in blocks if block.forbids(tier)), None)


def seen(step: Step) -> CudaInitError | None:
    """The error for a step up that a probe found during an import or after it; None where nothing forbids it."""
    block = _binding(step.tier) if blocks else None
    return _refuse(step, block) if block or (_config.current().forbid and importing()) else None


def _refuse(step: Step, block: Block | None) -> CudaInitError | None:
    said = f"{step.call or 'something'} {WOULD[step.tier]}, which is forbidden here"
    finding = _verdict.forbidden(_notice.journal(), step, _respond.facts(), said, block.why if block else IMPORTS)
    refusal = _error(finding)
    if refusal is not None and block is not None:
        block.refused.append(refusal)
    return refusal


def _error(finding: Finding) -> CudaInitError | None:
    """Raised in every mode: it was asked for by name. Only `ignore` silences it."""
    from .. import _text

    if _respond.silenced(finding):
        return None
    words = _text.text(finding)
    _respond.remember(finding, words)
    return CudaInitError(words, finding.as_dict())


def importing() -> bool:
    """Whether a module is being imported by this thread, of this process's own doing: a parent's import came along with the fork."""
    frames = _places.waiting()
    own = frames[_places.shared(frames, _notice.journal().cut()) :]
    return any(frame.file.startswith("<frozen importlib._bootstrap") and frame.function in IMPORTING for frame in own)


@safe(None)
def enter(allow_queries: bool, by: str = "") -> Block:
    """Forbid from here on; notes that CUDA is down here, or says that it is up already."""
    from . import imports

    imports.install()  # they may wait for a CUDA library still: what imports the first one would not be watched
    _notice.woken()
    block = Block(_notice.site(), allow_queries, by)
    blocks.append(block)
    return block


@safe(None)
def leave(block: Block) -> CudaInitError | None:
    """Forbid no longer. The error for what woke the driver unseen meanwhile, as C code does; None if nobody did."""
    _forget(block)
    if block.pid != os.getpid():
        return None
    seen = len(_notice.journal().steps)
    _notice.woken()
    unseen = [step for step in _journal.current.steps[block.began :] if step.tier == DRIVER and step.between and step.pid == block.pid]
    if not unseen or block.refused:
        return None
    return _refuse(unseen[0] if seen > block.began else _at_the_end(unseen[0]), block)


def _at_the_end(step: Step) -> Step:
    """A step found when the block ended: there Python says that the block's first line runs, but the last one is where it was found up."""
    down, up = step.between or (step.site, step.site)
    body = _body(step.site)
    if not body:
        return step
    last = up._replace(line=body[-1].end_lineno or body[-1].lineno, span=None)
    return step._replace(site=last._replace(line=body[0].lineno) if len(body) == 1 else last, between=(down, last))


def _body(site: Site) -> list[ast.stmt]:
    """The statements of the `with` that begins on a line."""
    tree = _source.tree("".join(linecache.getlines(site.file))) or ast.Module([], [])
    return next((node.body for node in ast.walk(tree) if isinstance(node, (ast.With, ast.AsyncWith)) and node.lineno == site.line), [])


def _forget(block: Block) -> None:
    if block in blocks:
        blocks.remove(block)


@safe(None)
def already() -> str:
    """Where CUDA was initialised, if it was: then nothing that happens in a block is an event. "" if it was not."""
    if not getattr(_notice.module("torch.cuda"), "_initialized", False) or _notice.bad() is not None:
        return ""
    steps = _notice.journal().steps
    return f"at {_places_text(steps[-1].site)}" if steps else "before cudaguard came on"
