"""A user's source as a syntax tree."""

from __future__ import annotations

import ast

ATTEMPTS = 10


def tree(text: str) -> ast.Module | None:
    """The tree of a piece of source; None where it is none, or is more than Python's parser takes.

    CPython 3.11 counts how deep it is once for all threads: of two that parse at the same time, one may be told "AST constructor
    recursion depth mismatch" (https://github.com/python/cpython/issues/106905). Asked again, it answers.
    """
    for _ in range(ATTEMPTS):
        try:
            return ast.parse(text)
        except SystemError:
            continue
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # ValueError: a null byte, before Python 3.12
            return None
    return None
