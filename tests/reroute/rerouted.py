"""Run a program in a process of its own in mode `reroute`, on the simulated device or a real one."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
REAL = bool(glob.glob("/dev/nvidia[0-9]*"))


class Ran(NamedTuple):
    """A program that has ended."""

    code: int
    out: str
    err: str
    report: list[dict[str, Any]]

    def ok(self) -> Ran:
        """The same; it must have ended well, and the guard must not have failed inside."""
        assert self.code == 0, f"exit {self.code}\n{self.out}\n{self.err}"
        assert not [f["message"] for f in self.report if f["slug"] == "internal"]
        return self

    def slugs(self) -> list[str]:
        """The slugs of the report, in its order."""
        return [finding["slug"] for finding in self.report]

    def told(self) -> list[str]:
        """The lines of the guard on stderr."""
        return [line for line in self.err.splitlines() if line.startswith("cudaguard:")]


def run(folder: Path, program: str | Path, *args: str, mode: str = "reroute", real: bool = False, timeout: float = 240, **extra: str) -> Ran:
    """Run a script, or source text, and read what it and the guard wrote."""
    script = program if isinstance(program, Path) else folder / "program.py"
    if not isinstance(program, Path):
        script.write_text(textwrap.dedent(program))
    report = folder / "report.jsonl"
    report.unlink(missing_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDAGUARD", "_CUDAGUARD", "PYTORCH"))}
    device = {} if real else {"CUDAGUARD_SIMULATE": "2", "CUDA_VISIBLE_DEVICES": ""}
    env = {**kept, "CUDAGUARD": mode, "CUDAGUARD_REPORT": str(report), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **device, **extra}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    done = subprocess.run([sys.executable, str(script), *args], env=env, cwd=folder, capture_output=True, text=True, timeout=timeout)
    lines = report.read_text().splitlines() if report.exists() else []
    return Ran(done.returncode, done.stdout, done.stderr, [json.loads(line) for line in lines])
