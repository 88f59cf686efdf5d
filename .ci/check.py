"""Run `python -m cudaguard check` on the case scripts, and compare its exit code and slugs with what their headers promise.

    check.py PYTHON FOLDER…    every case marked `sim: yes` that needs nothing which is missing

Cases with error-mode raise, note or warn must give 1 and one of the header's slugs; silent ones 0, or 3 where stock PyTorch fails too.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import subprocess
import sys
from pathlib import Path

FIND = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n) is None])"
LOUD = ("raise", "note", "warn")


def header(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z-]+): *([^#\n]*?) *(?:#.*)?$", path.read_text().split('"""')[1], re.M))


def missing(python: str, needs: str) -> str:
    return subprocess.run([python, "-c", FIND, *needs.replace(",", " ").split()], capture_output=True, text=True).stdout.strip()


def complaint(python: str, path: Path) -> str:
    """What is wrong with check's answer for a case, "" if nothing is."""
    head = header(path)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CUDAGUARD")}
    words = [python, "-m", "cudaguard", "check", "--format", "json", "--timeout", "120", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, env=environ, cwd=path.parent)
    wanted = (1,) if head["error-mode"] in LOUD else (0, 3) if head.get("stock") == "fails" else (0,)
    if done.returncode not in wanted:
        return f"exit {done.returncode}, not {wanted[0]}: {done.stderr.strip()[-300:]}"
    slugs = {finding["slug"] for finding in json.loads(done.stdout)["findings"]}
    promised = set(head.get("slug", "").replace(",", " ").split())
    return "" if wanted != (1,) or not promised or slugs & promised else f"found {slugs}, not {promised}"


def main(python: str, *folders: str) -> int:
    paths = sorted(path for folder in folders for path in Path(folder).resolve().glob("*.py") if header(path).get("sim") == "yes")
    run = [path for path in paths if not missing(python, header(path).get("needs", ""))]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        wrong = {path: words for path, words in zip(run, pool.map(lambda path: complaint(python, path), run), strict=True) if words}
    print(*(f"{path.stem}: {words}" for path, words in wrong.items()), sep="\n")
    print(f"check: {len(run) - len(wrong)} of {len(run)} cases right, {len(paths) - len(run)} left out for what they need")
    return 1 if wrong or not run else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
