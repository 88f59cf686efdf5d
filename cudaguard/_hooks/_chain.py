"""The exceptions behind an exception: what it was raised from, what was being handled, what a group holds. Only this process's own."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from .. import _places, _respond
from ..errors import CudaGuardError

# Functions that raise what another process sent, as text.
RAISE_ANOTHERS = {
    ("multiprocessing.managers", "_callmethod"),
    ("multiprocess.managers", "_callmethod"),
    ("torch.multiprocessing.spawn", "join"),
}
LOADERS = "in DataLoader worker process"  # torch, of what a loader's worker raised


def links(error: BaseException) -> Iterator[BaseException]:
    """An exception and those behind it, the outermost first, but for those that were explained, and those of other processes."""
    waiting, seen = [error], set()
    while waiting:
        link = waiting.pop(0)
        if id(link) in seen or _another_processs(link) or isinstance(link, CudaGuardError) or (link is not error and notes(link)):
            continue
        seen.add(id(link))
        yield link
        waiting += _behind(link)


def _behind(error: BaseException) -> list[BaseException]:
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    grouped = any(kind.__name__ == "BaseExceptionGroup" for kind in type(error).__mro__)  # Python 3.10 has it from a package
    held = list(getattr(error, "exceptions", ())) if grouped else []
    return [*held, cause] if cause is not None else held


def notes(error: BaseException) -> list[str]:
    """The guard's notes on an exception."""
    return [note for note in getattr(error, "__notes__", None) or () if isinstance(note, str) and note.startswith(_respond.NOTE)]


def without_notes(text: str, error: BaseException) -> str:
    """A traceback's text without the guard's notes on its exception, for where they are carried beside it."""
    return functools.reduce(lambda rest, note: rest.replace(f"{note}\n", ""), notes(error), text)


def _another_processs(error: BaseException) -> bool:
    """Whether an exception arose elsewhere: it has the text of a traceback for its cause, was never raised here, or was explained there."""
    if error.__traceback__ is None or type(error.__cause__).__name__.lstrip("_") == "RemoteTraceback":
        return True
    return _raised_for_another(error) or not _told_here(notes(error))


def _told_here(said: list[str]) -> bool:
    return all(any(note.endswith(words) for _, words in _respond.findings) for note in said)


def _raised_for_another(error: BaseException) -> bool:
    """Whether the line that raised it is one of multiprocessing's, or torch's, that hand on what they were sent."""
    trace = _places.innermost(error)
    if trace is None:
        return False
    frame = trace.tb_frame
    place = (frame.f_globals.get("__name__"), frame.f_code.co_name)
    return place in RAISE_ANOTHERS or (place == ("torch._utils", "reraise") and LOADERS in str(error))
