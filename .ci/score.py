"""Grade the case scripts with score_cases.py and compare its verdicts with .ci/expected_failures.txt.

    score.py SCORE_CASES PYTHON MODE…     MODE as for score_cases.py --mode: both, silence

A failure that is not listed is an error, and so is a listed case that passes or was not run: the list only ever says what is true.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

LIST = Path(__file__).resolve().with_name("expected_failures.txt")
OURS = Path(__file__).resolve().parent.parent / "tests" / "cases"  # graded too, by the same rules


def expected(text: str) -> dict[tuple[str, str], str]:
    """(case, mode) → reason, from lines `case mode  # reason`."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry, _, reason = line.partition("#")
        if not entry.strip():
            continue
        if len(entry.split()) != 2 or not reason.strip():
            sys.exit(f"{LIST.name}:{number}: not `case mode  # reason`: {line}")
        case, mode = entry.split()
        found[case, mode] = reason.strip()
    return found


def graded(score_cases: str, python: str, mode: str, *where: str) -> list[dict[str, object]]:
    """The rows that score_cases.py gives for a mode; `where` may name another folder of cases."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder, "rows.json")
        command = [sys.executable, score_cases, "--simulate", "2", "--python", python, "--mode", mode, "--json", str(rows), *where]
        code = subprocess.run([*command, "-j", "2", "--timeout", "60"]).returncode
        # 1 means that a case failed, which is judged here; anything else, that the grading itself did.
        if code not in (0, 1) or not rows.exists():
            sys.exit(f"score_cases.py --mode {mode} ended with {code} and graded nothing")
        found: list[dict[str, object]] = json.loads(rows.read_text())
    return found


def complaints(rows: list[dict[str, object]], known: dict[tuple[str, str], str]) -> list[str]:
    """One line for each verdict that the list does not foretell."""
    right = {(str(row["case"]), str(row["mode"])): bool(row["right"]) for row in rows}
    why = {(str(row["case"]), str(row["mode"])): row["why"] for row in rows}
    lines = [f"{' '.join(key)} failed and is not in {LIST.name}: {why[key]}" for key, good in right.items() if not good and key not in known]
    lines += [f"{' '.join(key)} passes now: remove it from {LIST.name}" for key in known if right.get(key)]
    lines += [f"{' '.join(key)} was not run, but stands in {LIST.name}" for key in known if key not in right]
    return lines


def main(arguments: list[str]) -> int:
    if len(arguments) < 3:
        sys.exit(str(__doc__))
    score_cases, python, *modes = arguments
    known = expected(LIST.read_text())
    rows = [row for mode in modes for where in ((), ("--cases", str(OURS))) for row in graded(score_cases, python, mode, *where)]
    wrong = complaints(rows, known)
    print(*wrong, sep="\n")
    passed = sum(bool(row["right"]) for row in rows)
    print(f"{passed} of {len(rows)} cases passed, {len(rows) - passed} failed, {len(known)} failures expected, {len(wrong)} surprises")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
