"""The first fix of each public case works: pasted into the script, it passes and the guard has nothing to say."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from edits import EDITS

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
SECONDS = 90
NEEDS = {"c01n": "torchdata", "c52_": "datasets", "c68_": "gunicorn", "c71_": "celery"}

pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the public cases do not lie beside this checkout")


def head(path: Path) -> dict[str, str]:
    """The `key: value` lines of a case's docstring."""
    return dict(re.findall(r"^([a-z-]+): *(.*)$", ast.get_docstring(ast.parse(path.read_text())) or "", re.M))


def failing() -> list[str]:
    """The cases that fail under the simulated device, so that there is something to fix."""
    heads = {path.stem: head(path) for path in sorted(CASES.glob("*.py"))}
    return [name for name, keys in heads.items() if keys.get("sim") == "yes" and keys["error-mode"] in ("raise", "note")]


def run(script: Path, report: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "CUDAGUARD": "error", "CUDAGUARD_SIMULATE": "2", "CUDAGUARD_REPORT": str(report), "TMPDIR": str(script.parent)}
    return subprocess.run([sys.executable, str(script)], env=environ, cwd=script.parent, capture_output=True, text=True, timeout=SECONDS)


def advice(report: Path) -> list[str]:
    """The ids that the guard gave, first to last, in the gravest finding."""
    found = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    return next(([entry["id"] for entry in finding["advice"]] for finding in found if finding["severity"] == "error"), [])


def test_every_failing_case_has_its_edits() -> None:
    """A new public case cannot be forgotten here."""
    assert sorted(EDITS) == sorted(failing())


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Outcome]]]:
    """The fixed script of every case that was asked for, two at a time."""
    # A short folder name: it holds the sockets that tensors travel by, whose paths may have 107 characters.
    names = [item.callspec.params["name"] for item in request.session.items if getattr(item, "callspec", None) and item.path == request.path]
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(outcome, name, tmp_path_factory.mktemp("c")) for name in names}


class Outcome(NamedTuple):
    """What a case did with its fix."""

    fixed: subprocess.CompletedProcess[str]
    still: list[str]


def outcome(name: str, folder: Path) -> Outcome:
    """Run a case with the first fix pasted in."""
    script = folder / f"{name}.py"
    script.write_text(edited(name))
    return Outcome(run(script, folder / "after.jsonl"), advice(folder / "after.jsonl"))


def edited(name: str) -> str:
    """The text of a case with its fix; an edit that no longer fits is an error."""
    text = (CASES / f"{name}.py").read_text()
    for old, new in EDITS[name][1]:
        if old not in text:
            raise ValueError(f"{name} no longer holds {old!r}")
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("name", sorted(EDITS))
def test_the_first_fix_pasted_in_makes_the_script_pass(name: str, outcomes: dict[str, Future[Outcome]]) -> None:
    """With it the script prints RESULT ok in silence. That it is the first one given is seen where each case is checked: .ci/check.py."""
    pytest.importorskip(NEEDS.get(name[:4], "torch"))
    seen = outcomes[name].result()
    assert "RESULT ok" in seen.fixed.stdout, seen.fixed.stdout[-500:] + seen.fixed.stderr[-1500:]
    assert seen.fixed.returncode == 0
    assert seen.still == []
    assert "cudaguard" not in re.sub(r'File "[^"]*"|\S*/\S*', "", seen.fixed.stderr)
