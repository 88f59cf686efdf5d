"""A fault in any hook leaves the program's own results as they are, and one note in each process that met it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from guarded import environment

PROGRAM = Path(__file__).with_name("fault_program.py")

# What the hooks lean on, at least one function of each room, and every function that notices something.
ROOMS = (
    "_places:here _places:waiting _places:kind _places:from_frames _places:raised_at _places:trimmed _places:Site.code",
    "_journal:Journal.stepped _journal:Journal.forked _journal:Journal.bad_fork _journal:Fork.site",
    "_verdict:forked _advice:choose _text:text _calls:name _makers:maker _driver:up",
    "_respond:remember _respond:facts _respond:silenced _respond:received _respond:_write",
    "_hooks._notice:site _hooks._notice:bad _hooks._notice:woken _hooks._notice:touched _hooks._notice:rose _hooks._notice:journal",
    "_hooks.forks:_before _hooks.forks:_after_in_parent _hooks.forks:_after_in_child",
    "_hooks.cuda:_approach _hooks.cuda:_arrived _hooks.cuda:_before _hooks.cuda:_after",
    "_hooks.imports:_begin _hooks.imports:_ended _hooks.imports:_settled",
    "_hooks.edges:enter_worker _hooks.edges:_own_frames _hooks.edges:_received _hooks._explain:_explain",
    "_hooks.processes:_enter _hooks.processes:_travels _hooks.processes:_sendable _hooks.children:_passenger",
)
# The report itself cannot be written, so no note can be expected in it.
NO_NOTE = {"_respond:received", "_respond:_write"}


def _tried(folder: Path, mode: str, places: Iterable[str]) -> dict[str | None, Any]:
    command = [sys.executable, str(PROGRAM), ",".join(places), str(folder)]
    env = environment(CUDAGUARD=mode, CUDAGUARD_SIMULATE="2")
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder, timeout=280)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the program sees without the guard."""
    seen = _tried(tmp_path_factory.mktemp("without"), "off", [])[None]
    assert len(seen) == 14, seen
    return seen


@pytest.mark.parametrize("row", ROOMS, ids=lambda row: row.split()[0].split(":")[0])
def test_a_fault_leaves_the_program_as_it_is(row: str, without: Any, tmp_path: Path) -> None:
    """Healthy and failing loaders, pools, executors, forks and queries give what they give without the guard; one `internal` note a process."""
    seen = _tried(tmp_path, "error", row.split())
    assert seen.pop(None) == without, "the program is not the same under a sound guard"
    assert list(seen) == row.split()
    for place, results in seen.items():
        assert results == without, place
        notes = _notes(tmp_path / str(place).replace(":", "-"))
        assert len(notes) == len(set(notes)), f"{place}: noted twice by one process"
        assert notes or place in NO_NOTE, f"{place}: nothing was noted, so nothing was tested"


def _notes(report: Path) -> list[int]:
    """The processes that noted a fault."""
    lines = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    return [finding["pid"] for finding in lines if finding["slug"] == "internal"]
