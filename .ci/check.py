"""Run `python -m cudaguard check` and `trace` on the case scripts, and compare what they say with what their headers and marks promise.

    check.py COMMAND PYTHON FOLDER…    every case marked `sim: yes` that needs nothing which is missing

check: cases with error-mode raise, note or warn must give 1 and one of the header's slugs; silent ones 0, or 3 where stock PyTorch fails too.
The first fix must be the one that tests/fixes follows for that case.
trace: one of its steps must be a line marked `# @init`, or be bracketed by two lines around it (a healthy worker may be up before). One case
is run for each way to start CUDA under each maker: to trace the others would tell nothing else.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "fixes"))
from edits import EDITS  # beside the tests that paste them in

FIND = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n) is None])"
LOUD = ("raise", "note", "warn")


def header(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z-]+): *([^#\n]*?) *(?:#.*)?$", path.read_text().split('"""')[1], re.M))


def missing(python: str, needs: str) -> str:
    return subprocess.run([python, "-c", FIND, *needs.replace(",", " ").split()], capture_output=True, text=True).stdout.strip()


def run(python: str, path: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CUDAGUARD")}
    command = [python, "-m", "cudaguard", *words, str(path)]
    return subprocess.run(command, capture_output=True, text=True, env={**environ, **variables}, cwd=path.parent, timeout=300)


def check(python: str, path: Path) -> str:
    """What is wrong with check's answer for a case, "" if nothing is."""
    head = header(path)
    done = run(python, path, "check", "--format", "json", "--timeout", "120")
    wanted = (1,) if head["error-mode"] in LOUD else (0, 3) if head.get("stock") == "fails" else (0,)
    if done.returncode not in wanted:
        return f"exit {done.returncode}, not {wanted[0]}: {done.stderr.strip()[-300:]}"
    findings = json.loads(done.stdout)["findings"]
    slugs, promised = {finding["slug"] for finding in findings}, set(head.get("slug", "").replace(",", " ").split())
    if wanted == (1,) and promised and not slugs & promised:
        return f"found {slugs}, not {promised}"
    fixes = next(([fix["id"] for fix in finding["advice"]] for finding in findings if finding["severity"] == "error"), [])
    followed = EDITS.get(path.stem, ("",))[0]
    return "" if not followed or fixes[:1] == [followed] else f"advises {fixes}, but tests/fixes follows {followed}"


def started(path: Path) -> list[tuple[int, str]]:
    """The lines marked `# @init`, by their numbers."""
    return [(number, line) for number, line in enumerate(path.read_text().splitlines(), 1) if re.search(r"#.*@init\b", line)]


def kinds(paths: list[Path]) -> list[Path]:
    """One case for each way to start CUDA, as far as the calls on the marked lines tell, under each maker."""
    found: dict[object, Path] = {}
    for path, marked in ((path, started(path)) for path in paths):
        if marked:
            calls = {call for _, line in marked for call in re.findall(r"[\w.]+(?=\()", line.partition("#")[0])}
            found.setdefault((header(path).get("maker"), frozenset(calls)), path)
    return list(found.values())


def trace(python: str, path: Path) -> str:
    """What is wrong with trace's answer for a case."""
    marked = [number for number, _ in started(path)]
    done = run(python, path, "trace", "--json", CUDAGUARD_SIMULATE="2")
    steps = json.loads(done.stdout.splitlines()[-1])["steps"]
    seen = [sorted(site["line"] for site in (step["site"], *step["between"]) if Path(site["file"]).name == path.name) for step in steps]
    right = any(lines and lines[0] <= mark <= lines[-1] + 3 for mark in marked for lines in seen)  # a marked call may take some lines
    return "" if right else f"lines {seen}, not {marked}"


def main(command: str, python: str, *folders: str) -> int:
    paths = sorted(path for folder in folders for path in Path(folder).resolve().glob("*.py") if header(path).get("sim") == "yes")
    whole = [path for path in paths if not missing(python, header(path).get("needs", ""))]
    judge = {"check": check, "trace": trace}[command]
    whole = kinds(whole) if command == "trace" else whole
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        wrong = {path: words for path, words in zip(whole, pool.map(lambda path: judge(python, path), whole), strict=True) if words}
    print(*(f"{path.stem}: {words}" for path, words in wrong.items()), sep="\n")
    print(f"{command}: {len(whole) - len(wrong)} of {len(whole)} cases right, {len(paths) - len(whole)} left out for what they need")
    return 1 if wrong or not whole else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
