"""Which packages initialise CUDA while they are imported, and at which line. `python tests/benchmarks/imports.py NAME…` prints a table.

Each import runs alone, in a process of its own, under `cudaguard trace`. For a machine with a GPU; simulated devices see what torch itself is asked.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import PathFinder
from typing import Any

AT_ONCE = 6
SECONDS = 600
HEAD = ("package", "version", "CUDA", "line", "code", "call")
Row = tuple[str, ...]


def row(name: str) -> Row:
    """A package's row of the table."""
    if PathFinder.find_spec(name.partition(".")[0]) is None:
        return (name, "-", "not installed", "", "", "")
    try:
        done = subprocess.run([sys.executable, "-m", "cudaguard", "trace", "--json", "-c", f"import {name}"], **_pipes(), timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return (name, version(name), f"not imported after {SECONDS} s", "", "", "")
    told = _story(done.stdout)
    found = _found(told)
    failed = done.returncode or told is None
    return (name, version(name), *(found[:1] if not failed else (f"{found[0]}; {_failed(done)}",)), *found[1:])


def _pipes() -> dict[str, Any]:
    return {"capture_output": True, "text": True, "errors": "replace", "stdin": subprocess.DEVNULL, "env": {**os.environ, "TQDM_DISABLE": "1"}}


def _story(out: str) -> dict[str, Any] | None:
    try:
        return dict(json.loads((out.splitlines() or [""])[-1]))
    except ValueError:
        return None


def _found(told: dict[str, Any] | None) -> Row:
    """How far CUDA went, and the line that took it there."""
    first = told["first"] if told else None
    if first is None:
        return ("leaves CUDA alone" if told else "unknown", "", "", "")
    if first["between"]:
        down, up = first["between"]
        return (str(told and told["tier"]), f"between {_place(down)} and {_place(up)}", up["code"], first["call"])
    at = first["at"] or {**first["site"], "exact": False, "candidates": []}
    return (str(told and told["tier"]), _place(at) + _doubt(at), at["code"], first["call"])


def _place(at: dict[str, Any]) -> str:
    """`torch_geometric/typing.py:33`, from the folder of packages on."""
    file = (at["file"] or "?").replace(os.sep, "/")
    for part in ("/site-packages/", "/dist-packages/"):
        file = file.rpartition(part)[2]
    return f"{file}:{at['line'] or '?'}"


def _doubt(at: dict[str, Any]) -> str:
    if at["exact"]:
        return ""
    return f" (one of {', '.join(map(str, at['candidates']))})" if at["candidates"] else " (not exact)"


def _failed(done: subprocess.CompletedProcess[str]) -> str:
    return f"import failed, exit {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}"


def version(name: str) -> str:
    """The version of the distribution that a package comes from."""
    top = name.partition(".")[0]
    for distribution in [*importlib.metadata.packages_distributions().get(top, []), top]:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "-"


def main(names: list[str]) -> int:
    """Print the table, in the order of the names, as Markdown."""
    if not names:
        print(__doc__, file=sys.stderr)
        return 2
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for cells in (HEAD, ("---",) * len(HEAD), *pool.map(row, names)):
            print("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
