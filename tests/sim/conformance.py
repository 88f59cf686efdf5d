#!/usr/bin/env python3
"""Runs one list of programs on a real GPU under stock PyTorch, or on the simulated device, and compares what they print.

    python tests/sim/conformance.py --stock --out tests/sim/h200.json       on a machine with a GPU; cudaguard is not needed
    python tests/sim/conformance.py --simulate 2 --compare tests/sim/h200.json
    python tests/sim/conformance.py --simulate 2 autograd layouts --show

Each program of ``programs/`` prints lines ``name: value``. Two runs agree if the same names have the same values: numbers within a
tolerance, devices, types, exception types and first lines exactly. `KNOWN` lists what differs, and why. Exit code 1 if anything else does.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import torch

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
TOLERANCE = 2e-3  # GPUs compute float32 products in another order, and float16 ones roughly
NUMBER = re.compile(r"(?<![\w.:])-?\d+\.?\d*(?:e[-+]?\d+)?(?![\w:])")

# (program, name of the line) -> why it differs. "*" stands for every line.
KNOWN: dict[tuple[str, str], str] = {
    ("memory", "from_dlpack"): "the capsule is the CPU's",
    ("memory", "cuda array interface"): "other CUDA libraries would take a CPU address for a GPU's, so it is refused",
    ("memory", "graph"): "graphs are not simulated",
    ("layouts", "strided deepcopy"): "not implemented by torch either; the sentence names the CPU's backend",
    ("layouts", "strided pin"): "not implemented by torch either; the sentence lists every backend of that build",
    ("mixing", "einsum of matrices"): "refused all the same; which product einsum makes of its arguments is not worked out here",
}

# The same for lines that differ only where the torch of this side is so new: torch itself changed since the other side was recorded.
LATER: dict[tuple[str, str], tuple[tuple[int, int], str]] = {
    ("poison", "torch.get_device_module()"): ((2, 14), "it asks for the accelerator as current_accelerator does, and wakes no driver"),
}


DRIVER_ERROR = getattr(torch, "AcceleratorError", RuntimeError).__name__  # the class is there since 2.8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help="names of programs; default: all")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--stock", action="store_true")
    where.add_argument("--simulate", type=int, metavar="N")
    parser.add_argument("--out", type=pathlib.Path, help="write what was printed, as JSON")
    parser.add_argument("--compare", type=pathlib.Path, help="a file written by --out elsewhere")
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    found = {"torch": version(), "programs": {name: run(name, args) for name in args.programs or names()}}
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    return compare(found, json.loads(args.compare.read_text())) if args.compare else 0


def names() -> list[str]:
    return sorted(path.stem for path in PROGRAMS.glob("*.py") if not path.stem.startswith("_"))


def version() -> str:
    code = "import torch; print(torch.__version__)"
    return subprocess.run([sys.executable, "-c", code], env=environment(None), capture_output=True, text=True, check=True).stdout.strip()


def environment(count: int | None) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CUDAGUARD")}
    clean["CUDAGUARD"] = "off"  # the guard would raise earlier than PyTorch does
    if count:
        clean["CUDAGUARD_SIMULATE"] = str(count)
    return clean


def run(name: str, args: Any) -> dict[str, str]:
    """The lines a program printed, by name; how it ended, if not well, under "ended"."""
    command = [sys.executable, str(PROGRAMS / f"{name}.py")]
    try:
        done = subprocess.run(command, env=environment(args.simulate), capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return {"ended": "it hung"}
    if args.show:
        print(f"== {name}", done.stdout, done.stderr, sep="\n")
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    if done.returncode:
        lines["ended"] = f"{done.returncode} {(done.stderr.strip().splitlines() or [''])[-1]}"
    return lines


def compare(here: dict[str, Any], there: dict[str, Any]) -> int:
    """Print what differs; 1 if something does that is not in `KNOWN`."""
    bad = same = known = 0
    for program, lines in here["programs"].items():
        expected = there["programs"].get(program, {})
        for name in [*lines, *(name for name in expected if name not in lines)]:
            mine, theirs = lines.get(name), expected.get(name)
            if theirs is None and not expected:
                continue  # two_devices on a machine with one
            if mine is not None and theirs is not None and alike(mine, theirs):
                same += 1
            elif (program, name) in KNOWN or (program, "*") in KNOWN or changed(program, name, here["torch"]):
                known += 1
            else:
                bad += 1
                print(f"{program}, {name}:\n    here  {mine}\n    there {theirs}")
    print(f"{same} lines alike, {known} known to differ, {bad} different (torch {here['torch']} here, {there['torch']} there)")
    return 1 if bad else 0


def changed(program: str, name: str, installed: str) -> bool:
    since, _ = LATER.get((program, name), (None, ""))
    return since is not None and tuple(int(part) for part in installed.split(".")[:2]) >= since


def too_old(line: str, said: str) -> bool:
    """Whether a line failed because it uses what this torch does not have: by the message, or where there is none by its own name."""
    missed = re.match(r"!! AttributeError: (?:module )?'(torch[\w.]*)'(?: object)? has no attribute '(\w+)'", said)
    return lacking(".".join(missed.groups())) if missed else said.startswith("!! AttributeError |") and lacking(line)


def lacking(text: str) -> bool:
    """Whether what the text names first, as `torch.accelerator.is_available()`, is not in this torch."""
    named = re.search(r"torch\.([\w.]+)", text)
    found: Any = torch
    for name in named.group(1).split(".") if named else ():
        found = getattr(found, name, None)
    return found is None


def alike(mine: str, theirs: str) -> bool:
    """Equal but for the numbers, which may differ a little."""
    if NUMBER.sub("#", mine) != NUMBER.sub("#", theirs):
        return False
    pairs = zip(NUMBER.findall(mine), NUMBER.findall(theirs), strict=True)
    return all(abs(float(a) - float(b)) <= TOLERANCE * max(1.0, abs(float(b))) for a, b in pairs)


if __name__ == "__main__":
    sys.exit(main())
