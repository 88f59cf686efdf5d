"""Carry a finding out: into the report, and back to the hook as an error, a warning or nothing, by mode.

Also the guard's own safety: a fault in a hook is caught here, noted once, and the guard steps aside.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from . import _config, _driver, _journal, _places, _trace
from ._config import Ignore
from .errors import CudaForkError, CudaForkWarning, CudaGuardError, CudaInitError, WorkerOutputError

if TYPE_CHECKING:  # what tells a finding is loaded when there is one to tell
    from ._verdict import Facts, Finding

P = ParamSpec("P")
R = TypeVar("R")

ERRORS: dict[str, type[CudaGuardError]] = {
    "fork-after-init": CudaForkError,
    "inherited-tensor": CudaForkError,
    "unsendable-output": WorkerOutputError,
    "pin-cuda-output": WorkerOutputError,
    "ipc-broken": WorkerOutputError,
    "forbidden-init": CudaInitError,
}

NOTE = "cudaguard: "  # how a note on another library's exception begins: by that it is known again
findings: list[tuple[dict[str, object], str]] = []  # with their texts; of this process, and those that its workers handed over
_seen: dict[tuple[object, ...], object] = {}  # places that were reported in this process, each with a mark of whoever was first
_ignored = threading.local()
_aside = False
_unwritable: set[str] = set()


def aside() -> bool:
    """Whether the guard failed inside and has stepped aside in this process."""
    return _aside


def facts() -> Facts:
    """What the process looks like now, for the header of a finding."""
    from ._verdict import Facts

    rank = os.environ.get("RANK", "")
    return Facts(
        _config.current().mode,
        _driver.simulated(),
        os.uname().nodename if hasattr(os, "uname") else "",
        int(rank) if rank.isdigit() else None,
        "ipykernel" in sys.modules or hasattr(sys, "ps1"),
        _main_guard(),
        _unpicklable(),
        _now(),
        "HIP (ROCm)" if getattr(sys.modules.get("torch.version"), "hip", None) else "CUDA",
        _default_device(),
        bool(_script()),
    )


def _default_device() -> bool:
    """Whether tensors that name no device are made on the GPU here: by `set_default_device`, a device as context, or the default tensor type.

    torch.get_default_device() makes a tensor there to find out.
    """
    named = getattr(sys.modules.get("torch.utils._device"), "CURRENT_DEVICE", None)
    kept = getattr(sys.modules.get("torch._C"), "_get_default_device", str)()
    return str(named or kept).startswith("cuda")


def _unpicklable() -> str:
    """The part of this child's work that does not pickle, "" if spawn could carry it. Asked only on the way to an error."""
    from . import _culprit

    data = sys.modules.get("torch.utils.data")
    worker = data.get_worker_info() if data else None
    if worker is not None:
        return _culprit.unpicklable(worker.dataset, "dataset")
    process = getattr(sys.modules.get("multiprocessing.process"), "_current_process", None)
    code = getattr(getattr(process, "_target", None), "__code__", None)
    # A pool's or an executor's own target carries its queues: they travel by other ways, and are not the user's to mend.
    ours = code is not None and _places.kind(code.co_filename) == _places.USER
    return _culprit.unpicklable(process._args, "args") if process is not None and ours else ""


def _now() -> str:
    from datetime import datetime, timezone

    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _script() -> str:
    """The program's file; "" where a spawned child could not import the program at all: given by -c, typed, or read from stdin."""
    file = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    return "" if file == _places.TYPED else file


def _main_guard() -> bool:
    """Whether `__main__` can be imported again by a spawned child: it has a guard, or it is no script."""
    file = _script()
    if not file or getattr(sys.modules["__main__"], "__spec__", None) is not None:
        return bool(file)
    try:
        with open(file, encoding="utf-8", errors="replace") as source:
            return "__name__" in source.read()
    except OSError:
        return True


def respond(finding: Finding, cause: BaseException | None = None) -> CudaGuardError | None:
    """Report a finding; give back the error to raise, or None where PyTorch should go on as it would."""
    from . import _text

    if silenced(finding):
        return None
    words = _text.text(finding)
    first = remember(finding, words)
    acting = _config.current().acting
    if finding.severity == "note" or acting == "record":
        return None
    if acting == "warn" or finding.severity == "warning":
        return _warn(words, finding) if first else None
    if finding.slug not in ERRORS:
        return None
    error = ERRORS[finding.slug](words, finding.as_dict())
    if cause is not None:
        error.__cause__ = cause.with_traceback(_places.trimmed(cause.__traceback__))
    return error


def _warn(words: str, finding: Finding) -> CudaGuardError | None:
    """Warn. Where the user turned warnings into errors, give this one back to be raised like an error: raised here it would be a fault."""
    import warnings

    try:
        warnings.warn(words, CudaForkWarning, stacklevel=_depth(finding))
    except CudaForkWarning as wanted:
        return cast(CudaGuardError, wanted.with_traceback(None))
    return None


def annotate(error: Exception, finding: Finding) -> Exception:
    """Report a finding as a note on another library's exception, which goes on as it is."""
    from . import _text

    if silenced(finding):
        return error
    words = _text.text(finding)
    first = remember(finding, words)
    if _config.current().acting == "record":
        return error
    if hasattr(error, "add_note"):
        error.add_note(NOTE + words)
    elif first:  # Python 3.10 has no notes
        print(NOTE + words, file=sys.stderr)
    return error


def _depth(finding: Finding) -> int:
    """How far up the stack the user's line is, so that the warning names it."""
    frame, depth = sys._getframe(1), 1
    site = finding.touch.site if finding.touch else None
    while frame.f_back is not None and site is not None and (frame.f_code.co_filename, frame.f_lineno) != (site.file, site.line):
        frame, depth = frame.f_back, depth + 1
    return depth


def remember(finding: Finding, words: str) -> bool:
    """Keep a finding and write it to the report, once per place and process. Whether it was the first there."""
    site = finding.touch.site if finding.touch else finding.fork
    key = (finding.slug, finding.pid, site.file if site else None, site.line if site else None)
    mark = object()
    if _seen.setdefault(key, mark) is not mark:  # one step, that no other thread can come between
        return False
    received(finding.as_dict(), words)
    _write(_config.current().report, finding.as_dict())
    _trace.found(finding)
    return True


def received(finding: dict[str, object], words: str) -> None:
    """Keep a finding in this process's own list: its own, or one that a worker handed over."""
    findings.append((finding, words))


def silenced(finding: Finding) -> bool:
    """Whether the user asked not to hear of this."""
    stack: list[str] = getattr(_ignored, "slugs", [])
    return finding.slug in stack or any(_matches(rule, finding) for rule in _config.current().ignore)


def _matches(rule: Ignore, finding: Finding) -> bool:
    """Whether a rule of CUDAGUARD_IGNORE silences a finding: by slug, file (its end) and line of the touch."""
    site = finding.touch.site if finding.touch else finding.fork
    if rule.slug != finding.slug or (rule.file is not None and site is None):
        return False
    if rule.file is None or site is None:
        return True
    same = ("/" + site.file.replace("\\", "/")).endswith("/" + rule.file.lstrip("/"))
    return same and rule.line in (None, site.line)


class Ignoring:
    """The context manager behind :func:`cudaguard.ignore`."""

    def __init__(self, *slugs: str) -> None:
        from ._verdict import SEVERITY

        wrong = [slug for slug in slugs if slug not in SEVERITY]
        if wrong or not slugs:
            raise ValueError(f"unknown slug {', '.join(map(repr, wrong)) or '(none given)'}; legal: {', '.join(SEVERITY)}")
        self.slugs = slugs

    def __enter__(self) -> None:
        _ignored.slugs = [*getattr(_ignored, "slugs", []), *self.slugs]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _ignored.slugs = _ignored.slugs[: len(_ignored.slugs) - len(self.slugs)]


def _write(path: str | None, finding: dict[str, object]) -> None:
    """Append one whole line in one write: twenty processes may do so at once."""
    if path is None:
        return
    import json

    try:
        append(path, json.dumps(finding, ensure_ascii=False, default=str) + "\n")
    except OSError as error:
        if path not in _unwritable:
            _unwritable.add(path)
            print(f"cudaguard: cannot write the report {path}: {error.strerror or error}", file=sys.stderr)


def append(path: str, line: str) -> None:
    """Append a line to a file with a single write, so that lines of several processes never mix. Raises OSError."""
    data = line.encode("utf-8", "backslashreplace")
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        if os.write(handle, data) != len(data):
            raise OSError("the disk is full: a line was cut")
    finally:
        os.close(handle)


def safe(default: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a hook's body harmless: a fault in it is noted once, the guard steps aside, and the default comes back.

    Only Exception is caught: KeyboardInterrupt and SystemExit belong to the program.
    """

    def decorate(body: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(body)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            if _aside or _config.current().mode == "off":
                return cast(R, default)
            try:
                return body(*args, **kwargs)
            except Exception as fault:
                step_aside(fault)
                return cast(R, default)

        return guarded

    return decorate


def step_aside(fault: Exception) -> None:
    """Note a fault of the guard's own, once, and do nothing more in this process. Never raises: the fault may lie in what notes it."""
    global _aside
    if _aside:
        return
    _aside = True
    with contextlib.suppress(Exception):
        _note_fault(fault)


def _note_fault(fault: Exception) -> None:
    import traceback

    from ._verdict import Finding

    where = traceback.extract_tb(fault.__traceback__)
    last = f" at {os.path.basename(where[-1].filename)}:{where[-1].lineno}" if where else ""
    journal = _journal.current
    message = f"cudaguard failed inside and stepped aside: {type(fault).__name__}: {fault}{last}"
    note = Finding("internal", message, _plain_facts(), os.getpid(), os.getppid(), journal.worker, None, None, None, None, None, None, ())
    received(note.as_dict(), message)
    _write(_config.current().report, note.as_dict())
    _trace.found(note)


def _plain_facts() -> Facts:
    """Facts that cannot fail: the fault may lie in the others."""
    from ._verdict import Facts

    return Facts(_config.current().mode, time=_now())


def forget() -> None:
    """Begin anew, as when the guard is switched on again."""
    global _aside
    _aside = False
    findings.clear()
    _seen.clear()


def forked() -> None:
    """Go on as the child of a fork: what the parent found is the parent's."""
    findings.clear()
    _seen.clear()
