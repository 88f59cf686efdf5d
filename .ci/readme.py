"""Run the code blocks of README.md, or print one of them.

    readme.py show N    print the N-th ```sh block (the first holds the main command, the second the test command)
    readme.py run       run every ```sh and ```python block in a copy of the checkout, with the python that runs this first on PATH;
                        the test command is left out, it is a step of its own

HTML comments on the lines before a block say how it is run: `<!-- not run: reason -->`, `<!-- exits: 1 -->` (the code it must end with),
`<!-- env: NAME=VALUE NAME=VALUE -->`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parent.parent
LANGUAGES = ("sh", "python")
SECONDS = 300


class Block(NamedTuple):
    language: str
    line: int
    marks: dict[str, str]
    code: str


def blocks(text: str) -> list[Block]:
    """The fenced blocks of the text in LANGUAGES, in order."""
    found: list[Block] = []
    marks: dict[str, str] = {}
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        if fence := re.fullmatch(r"```(\w*)", lines[at]):
            end = lines.index("```", at + 1)
            if fence[1] in LANGUAGES:
                found.append(Block(fence[1], at + 1, marks, "\n".join(lines[at + 1 : end]) + "\n"))
            at, marks = end, {}
        elif mark := re.fullmatch(r"<!-- ([\w ]+): *(.*?) *-->", lines[at]):
            marks = {**marks, mark[1]: mark[2]}
        elif lines[at].strip():
            marks = {}
        at += 1
    return found


def shell(found: list[Block], number: int) -> Block:
    """The number-th ```sh block, from 1."""
    commands = [block for block in found if block.language == "sh"]
    if len(commands) < number:
        sys.exit(f"README.md has {len(commands)} ```sh blocks, so no number {number}")
    return commands[number - 1]


def run(block: Block, folder: Path) -> bool:
    """Run a block there and say how it went."""
    name = f"README.md:{block.line} ({block.language})"
    if "not run" in block.marks:
        print(f"not run  {name}: {block.marks['not run']}", flush=True)
        return True
    wanted = int(block.marks.get("exits", "0"))
    print(f"running  {name}", flush=True)
    code = execute(block, folder)
    if code != wanted:
        print(f"FAILED   {name}: exit code {code}, not {wanted}", flush=True)
    return code == wanted


def execute(block: Block, folder: Path) -> int | str:
    """The exit code of the block, or why there is none."""
    # A file, not `python -c`: multiprocessing and tracebacks want one, as the reader's script is.
    script = folder / f"readme_{block.line}.{'py' if block.language == 'python' else 'sh'}"
    script.write_text(block.code)
    command = [sys.executable] if block.language == "python" else ["bash", "-euo", "pipefail"]
    try:
        return subprocess.run([*command, script.name], cwd=folder, env=environ(block), timeout=SECONDS).returncode
    except subprocess.TimeoutExpired:
        return f"none within {SECONDS} s"


def environ(block: Block) -> dict[str, str]:
    # Not resolved: the folder of the link is the one that has the environment's other commands.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return {**os.environ, "PATH": path, **dict(pair.split("=", 1) for pair in block.marks.get("env", "").split())}


def copy(folder: str) -> Path:
    """A copy of the checkout without what is built or cached, so that blocks may write where they are."""
    skip = shutil.ignore_patterns(".git", "venv", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")
    return Path(shutil.copytree(TOP, Path(folder, "checkout"), ignore=skip))


def run_all(found: list[Block]) -> int:
    tests = shell(found, 2)
    rest = [block for block in found if block != tests]
    with tempfile.TemporaryDirectory() as folder:
        where = copy(folder)
        failed = [block for block in rest if not run(block, where)]
    print(f"{len(rest) - len(failed)} blocks passed, {len(failed)} failed")
    return 1 if failed else 0


def main(arguments: list[str]) -> int:
    found = blocks((TOP / "README.md").read_text())
    if arguments[:1] == ["show"] and len(arguments) == 2:
        print(shell(found, int(arguments[1])).code, end="")
        return 0
    if arguments == ["run"]:
        return run_all(found)
    sys.exit(str(__doc__))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
