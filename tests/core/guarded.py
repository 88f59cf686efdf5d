"""Run a piece of Python in a process of its own, under the guard, and look at what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Finding = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]


class Run(NamedTuple):
    """A process that has ended."""

    code: int
    out: str
    err: str
    report: list[Finding]  # the lines of CUDAGUARD_REPORT
    script: Path

    def slugs(self) -> list[str]:
        """The slugs of the findings in the report, in its order."""
        return [finding["slug"] for finding in self.report]

    def ok(self) -> Run:
        """The run, which must have ended well."""
        assert self.code == 0, f"exit {self.code}\n{self.out}\n{self.err}"
        return self

    def json(self) -> Any:
        """What the last line of the output says, as JSON."""
        self.ok()
        return json.loads(self.out.splitlines()[-1])

    def line(self, mark: str) -> int:
        """The number of the script's line that has this text in it."""
        found = [n for n, text in enumerate(self.script.read_text().splitlines(), 1) if mark in text]
        assert len(found) == 1, f"{mark!r} stands on lines {found}"
        return found[0]


Program = Callable[..., Run]


def environment(**extra: str | None) -> dict[str, str]:
    """The environment of this process without anything that steers Python or the guard, and with `extra`; None leaves a name out."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDAGUARD", "_CUDAGUARD", "PYTHON", "PYTORCH"))}
    kept |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}
    return {name: value for name, value in (kept | extra).items() if value is not None}


def run(
    folder: Path,
    source: str,
    *args: str,
    mode: str | None = "error",
    simulate: int | None = 2,
    env: Mapping[str, str] | None = None,
    flags: tuple[str, ...] = (),
    name: str = "program.py",
    report: str | None = "report.jsonl",
    timeout: float = 120,
) -> Run:
    """Write `source` into `folder`, run it there and wait. `report` is a file name in `folder`, or None for no report."""
    script = folder / name
    script.write_text(textwrap.dedent(source))
    lines = folder / report if report else None
    if lines is not None:
        lines.unlink(missing_ok=True)
    wanted = {"CUDAGUARD": mode, "CUDAGUARD_SIMULATE": str(simulate) if simulate else None, "CUDAGUARD_REPORT": str(lines) if lines else None}
    full = environment(**{**wanted, **(env or {})})
    done = subprocess.run([sys.executable, *flags, str(script), *args], cwd=folder, env=full, capture_output=True, text=True, timeout=timeout)
    found = [json.loads(line) for line in lines.read_text().splitlines()] if lines is not None and lines.exists() else []
    return Run(done.returncode, done.stdout, done.stderr, found, script)
