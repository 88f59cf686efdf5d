"""Workflow commands of GitHub Actions: a line of the log that becomes a mark at a line of the source.

The format and its escapes: docs.github.com, "Workflow commands for GitHub Actions", and actions/toolkit's command.ts.
"""

from __future__ import annotations

import os
from typing import Any

from . import blocks

LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


def finding(found: dict[str, Any]) -> str:
    """The annotation of a finding, at the user's line that touched CUDA, else at the one that made the child."""
    site = found["touch"] or found["fork"] or found["origin"]
    return _command(LEVELS[found["severity"]], _at(site), f"cudaguard: {found['slug']}", "\n".join(blocks.block(found)))


def plain(level: str, title: str, text: str) -> str:
    """An annotation that belongs to no line."""
    return _command(level, [], title, text)


def _at(site: dict[str, Any] | None) -> list[str]:
    return [f"file={_property(_relative(site['file']))}", f"line={site['line']}"] if site else []


def _relative(file: str) -> str:
    """GitHub knows files by their path in the repository; forward slashes on every system."""
    root = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
    inside = os.path.abspath(file).startswith(os.path.join(os.path.abspath(root), ""))
    return (os.path.relpath(file, root) if inside else file).replace(os.sep, "/")


def _command(level: str, at: list[str], title: str, text: str) -> str:
    return f"::{level} {','.join([*at, f'title={_property(title)}'])}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
