"""`explain`: the page of a slug."""

from __future__ import annotations

import argparse
import textwrap

from .. import _pages
from .._pages import Page
from .._verdict import SEVERITY
from . import UsageError, terminal

WIDTH = 92  # characters


class Explain:
    """Explain a finding by its slug: what happened, why, how to find it, every fix with its price.

    Without a slug: all slugs, with one line each.
    """

    options: tuple[str, ...] | None = None

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Add the slug."""
        parser.add_argument("slug", nargs="?", metavar="SLUG", help="the word in [brackets] at the end of a finding")

    def run(self, args: argparse.Namespace) -> None:
        """Print the page, or the list."""
        terminal.show(page(named(args.slug)) if args.slug else contents())


def named(slug: str) -> Page:
    """The page of a slug, with or without its brackets. Raises UsageError for a slug that does not exist."""
    found = next((page for page in _pages.PAGES if page.slug == slug.strip("[]")), None)
    if found is None:
        raise UsageError(f"unknown slug {slug!r}; legal: {', '.join(page.slug for page in _pages.PAGES)}")
    return found


def contents() -> str:
    """Every slug, with one line."""
    rows = [f"  {page.slug:<18}  {SEVERITY[page.slug]:<7}  {page.title}" for page in _pages.PAGES]
    return "\n".join([terminal.heading("What cudaguard finds"), "", *rows, "", "python -m cudaguard explain SLUG tells more."])


def page(page: Page) -> str:
    """A page as text."""
    head = terminal.heading(f"{page.slug} ({SEVERITY[page.slug]}): {page.title}")
    parts = [head, *_section("What happened", page.happened), *_section("Why", page.why), *_section("How to find it", page.find)]
    for number, fix in enumerate(page.fixes, 1):
        parts += [*([terminal.heading("How to repair it")] if number == 1 else []), _fix(number, fix)]
    return "\n\n".join([*parts, *_section("How to silence it", _silence(page))])


def _section(title: str, words: str) -> list[str]:
    return [terminal.heading(title), *(_paragraph(block) for block in words.split("\n\n"))] if words else []


def _paragraph(block: str, indent: str = "") -> str:
    """Lines that begin with four spaces are code: they stay as they are."""
    if block.startswith("    "):
        return textwrap.indent(block, indent)
    return _filler(indent).fill(" ".join(block.split()))


def _filler(indent: str) -> textwrap.TextWrapper:
    """Breaks lines at spaces only: names and options stay whole."""
    return textwrap.TextWrapper(WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def _fix(number: int, fix: _pages.Fix) -> str:
    blocks = [f"{fix.what}", *([textwrap.indent(fix.code, "    ")] if fix.code else []), f"Price: {fix.price}"]
    shown = "\n".join(_paragraph(block, "   ") for block in blocks)
    return f"{number}.{shown[2:]}"


def _silence(page: Page) -> str:
    if page.silence:
        return page.silence
    return (
        f"For a whole run, or for one file or one line:\n\n    CUDAGUARD_IGNORE={page.slug}\n    CUDAGUARD_IGNORE={page.slug}@data.py:52\n\n"
        f'In the program: with cudaguard.ignore("{page.slug}"). What is silenced then does what PyTorch does without the guard.'
    )


COMMAND = Explain()
