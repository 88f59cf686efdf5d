"""A finding of a report file as a block of text: the places in the order they happened, and the fixes."""

from __future__ import annotations

from typing import Any

from .. import _text
from .._advice import Advice

LABELS = (("origin", "woke CUDA"), ("fork", "forked"), ("touch", "touched"))


def title(words: list[str]) -> str:
    """What to call a program: its script, `-m module`, or `-c` with the code."""
    return " ".join(words[:2]) if words[0].startswith("-") else words[0]


def block(finding: dict[str, Any]) -> list[str]:
    """The block of a finding."""
    methods = [method for method in finding.get("start_methods", []) if method]
    under = f" (start method {', '.join(methods)})" if methods else ""
    head = f"[{finding['slug']}] {finding['severity']}{under}: {_text._cut((finding['message'].splitlines() or [''])[0])}"
    return [head, *(line for row in _rows(finding) for line in row), *_text.fixes([Advice(**fix) for fix in finding["advice"]])]


def _rows(finding: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name, label in LABELS:
        site = finding[name]
        if site is not None:
            rows.append(_row(_label(name, label, finding), site))
        elif name == "origin" and finding["tier"]:
            rows.append([f"  {label:<10}  not seen"])
    return rows


def _label(name: str, label: str, finding: dict[str, Any]) -> str:
    return "started" if name == "fork" and finding["start_method"] not in (None, "fork") else label


def _row(label: str, site: dict[str, Any]) -> list[str]:
    inside = f", in {site['function']}" if site["function"] != "<module>" else ""
    call = f"  {site['call']}" if site.get("call") and site["call"] not in site["code"] else ""
    head = f"  {label:<10}  {place(site) + inside:<44}{call}".rstrip()
    return [head, *([" " * 14 + _text._cut(site["code"])] if site["code"] else [])]


def place(site: dict[str, Any]) -> str:
    """`file:line`, as short as a reader can follow."""
    if site.get("cell"):
        return f"{site['cell']}, line {site['line']}"
    return f"{_text.short(site['file'])}:{site['line']}" if site["line"] else str(site["file"])
