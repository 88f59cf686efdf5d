"""A user's source: as a syntax tree, and the statement that a line is part of."""

from __future__ import annotations

import ast
import functools
import linecache
import re
import textwrap

ATTEMPTS = 10
HEAD_COMMENT = re.compile(r":[ \t]*#[^\n]*$")


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


def file_tree(file: str) -> ast.Module | None:
    """The tree of a whole file, or of a notebook's cell; None where there is no source to read."""
    return _whole("".join(linecache.getlines(file)))


@functools.lru_cache(2)  # of one finding, every place is looked at: mostly in the same file
def _whole(text: str) -> ast.Module | None:
    return tree(text)


@functools.lru_cache(2)
def _statements(text: str) -> list[ast.stmt]:
    whole = _whole(text)
    return [node for node in ast.walk(whole) if isinstance(node, ast.stmt)] if whole else []


def statement(file: str, line: int) -> str:
    """The whole statement that a line is part of, without its last comment; of a compound one its head. The line itself where none is found.

    What stands on a line alone is often no statement: `device="cuda",` or `sample = torch.load(`.
    """
    lines = linecache.getlines(file)
    found = [node for node in _statements("".join(lines)) if _first(node) <= line <= _last(node)]
    if not found:
        return linecache.getline(file, line).strip()
    node = min(reversed(found), key=lambda node: _last(node) - _first(node))  # of equal ones the walk meets the innermost last
    rows = lines[_first(node) - 1 : _last(node)]
    if not _head(node):
        rows[-1] = rows[-1].encode()[: node.end_col_offset].decode()
    return HEAD_COMMENT.sub(":", textwrap.dedent("".join(rows)).strip())


def _first(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(part.lineno for part in decorators)])


def _last(node: ast.stmt) -> int:
    """The last line of a statement; of one that holds others, the last before them."""
    return _head(node) or node.end_lineno or node.lineno


def _head(node: ast.stmt) -> int:
    """The last line of the head of a statement that holds others below it; 0 for any other."""
    body = getattr(node, "body", None)
    inner = _first(body[0]) if isinstance(body, list) and body and isinstance(body[0], ast.stmt) else 0
    return max(node.lineno, inner - 1) if inner else 0
