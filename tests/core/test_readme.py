"""The README shows what a user sees."""

from __future__ import annotations

import re
import subprocess
import sys

from guarded import ROOT, environment


def plain(text: str) -> list[str]:
    """The lines of an error, without process numbers and the padding that follows them."""
    return [re.sub(r"\s+", " ", re.sub(r"process \d+", "process N", line)) for line in text.strip().splitlines()]


def test_the_error_in_the_readme_is_the_one_that_the_example_gives() -> None:
    """Word for word, but for the process numbers."""
    env = environment(CUDAGUARD_SIMULATE="2")
    done = subprocess.run([sys.executable, "examples/train.py", "--broken"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    shown = (ROOT / "README.md").read_text().partition("```text\n")[2].partition("```")[0]
    assert plain(done.stderr[done.stderr.rindex("cudaguard.errors") :]) == plain(shown)
