"""Explain an exception at the edge of a child, while Python still has it in hand."""

from __future__ import annotations

import os

from .. import _calls, _config, _places, _respond, _verdict
from .._journal import Fork
from .._respond import safe
from .._verdict import Finding, Touch
from ..errors import CudaGuardError
from . import _chain, _inherited, _notice, _words, putting


def explain(error: BaseException) -> BaseException:
    """The exception that should go on in place of this one: the guard's where CUDA and a fork are to blame, else the same.

    torch's own is replaced, and becomes the cause. A library's, or one that wraps torch's, is annotated: its callers may match on its type.
    """
    return _explain(error) or error


@safe(None)
def annotate(error: BaseException) -> BaseException | None:
    """Note on an exception that is shown or sent, and may be caught again: it keeps its type. Gives it back, if it has a note now."""
    blamed = _blamed(error)
    return _annotate(error, blamed) if blamed is not None else None


@safe(None)
def _explain(error: BaseException) -> BaseException | None:
    if isinstance(error, CudaGuardError):
        return error
    blamed = _blamed(error)
    if blamed is None:
        return None
    replaceable = blamed is error and _words.slug(error) in _respond.ERRORS
    return _replace(error) if replaceable else _annotate(error, blamed)


def _blamed(error: BaseException) -> BaseException | None:
    """The exception that speaks of CUDA and a fork: this one, or one behind it."""
    if not isinstance(error, Exception) or _notice.bad() is None:
        return None
    return next(filter(_words.slug, _chain.links(error)), None)


def _replace(error: BaseException) -> CudaGuardError | None:
    better = _respond.respond(_finding(error), error)
    said = _chain.notes(error)
    if better is not None and said:  # it was shown before: the error that goes on says all of it
        error.__notes__ = [note for note in error.__notes__ if note not in said]
    return better


def _annotate(error: BaseException, blamed: BaseException) -> BaseException | None:
    if not isinstance(error, Exception) or _chain.notes(error):
        return None
    finding = _finding(blamed)
    if finding.slug in _respond.ERRORS and _config.current().acting == "warn":
        _respond.respond(finding)
        return None
    return _respond.annotate(error, finding)


def _finding(error: BaseException) -> Finding:
    fork = _notice.bad()
    assert isinstance(fork, Fork)
    site = putting.line(error) or _places.raised_at(error, _notice.journal().cut())
    slug = _words.slug(error) or ""
    if slug == "inherited-tensor" and not _inherited.inherited(error, site):
        slug = "fork-after-init"
    touch = Touch(os.getpid(), _calls.name(site), site, _notice.said(error))
    return _verdict.forked(slug, _notice.journal(), touch, _respond.facts(), fork)
