"""What the guard costs: guard against no guard, taking turns in one run. `python tests/benchmarks/core.py [--quick]` prints a table.

Each row is the median of several rounds; a ratio is the median of the rounds' own ratios, so that what disturbs both sides of a round
does not count. Simulated devices stand in for CUDA where a row needs them, on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 3 if "--quick" in sys.argv else 9


class Row(NamedTuple):
    """A line of the table; times in seconds."""

    what: str
    without: float | None
    guarded: float
    ratio: float | None
    budget: str
    met: bool | None


# The processor's time: the clock's would tell what else the machine does.
IMPORT = """
import sys, time
before = time.process_time()
if sys.argv[1] == "guard":
    import cudaguard
print(time.process_time() - before)
"""
# The worst case: batches so small that nothing but the loader's own work is measured.
EPOCH = """
import time, torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.arange(6000.0)), batch_size=2, num_workers=1, persistent_workers=True, multiprocessing_context="fork")
for batch in loader:
    pass
best = []
for epoch in range(5):
    before = time.perf_counter()
    for batch in loader:
        pass
    best.append(time.perf_counter() - before)
print(min(best))
"""
FORK = """
import os, statistics, time, torch
def deep(n):
    return deep(n - 1) if n else measure()
def measure():
    times = []
    for _ in range(60):
        before = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        times.append(time.perf_counter() - before)
        os.waitpid(pid, 0)
    return statistics.median(times)
torch.cuda.is_available()
print(deep(DEPTH))
"""
# The hooks alone, in the parent before and in the child after, without the fork between them.
HOOK = """
import statistics, time, torch
from cudaguard import _journal
from cudaguard._hooks import forks
def deep(n):
    return deep(n - 1) if n else measure()
def measure():
    times = []
    for _ in range(400):
        before = time.perf_counter()
        forks._before()
        forks._after_in_parent()
        times.append(time.perf_counter() - before)
    return statistics.median(times)
torch.cuda.is_available()
print(deep(DEPTH))
"""
CALL = """
import statistics, timeit, torch
torch.cuda.init() if BUSY else None
times = timeit.repeat("f()", globals={"f": torch.cuda.CALL}, number=20000, repeat=7)
print(min(times) / 20000)
"""


def run(code: str, env: dict[str, str], *args: str, through: tuple[str, ...] = ()) -> float:
    """What a program prints, in seconds; the time it took where it prints nothing. `through` is a command that runs it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDAGUARD", "_CUDAGUARD", "PYTHON"))}
    full = {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **env}
    before = time.perf_counter()
    done = subprocess.run([sys.executable, *through, "-c", code, *args], env=full, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)) if done.stdout.strip() else time.perf_counter() - before


def sides(
    what: str, without: Callable[[], float], guarded: Callable[[], float], budget: str, met: Callable[[float, float, float], bool | None]
) -> Row:
    """Measure two sides in turn, each first in every second round."""
    pairs = []
    for number in range(ROUNDS):
        if number % 2:
            second, first = guarded(), without()
        else:
            first, second = without(), guarded()
        pairs.append((first, second))
    plain, ours = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
    ratio = statistics.median(pair[1] / pair[0] for pair in pairs)
    return Row(what, plain, ours, ratio, budget, met(plain, ours, ratio))


def mode(code: str, what: str, budget: str, met: Callable[[float, float, float], bool | None], simulate: bool = True) -> Row:
    """The same program with the guard off and in mode `error`."""
    device = {"CUDAGUARD_SIMULATE": "1", "CUDA_VISIBLE_DEVICES": ""} if simulate else {}
    return sides(what, lambda: run(code, {**device, "CUDAGUARD": "off"}), lambda: run(code, {**device, "CUDAGUARD": "error"}), budget, met)


def traced(what: str, budget: str, met: Callable[[float, float, float], bool | None], *options: str) -> Row:
    """The loader epoch by itself, and under `trace`."""
    command = ("-m", "cudaguard", "trace", *options)
    return sides(what, lambda: run(EPOCH, {"CUDAGUARD": "off"}), lambda: run(EPOCH, {}, through=command), budget, met)


def start() -> Row:
    """Interpreter start: an empty folder of packages against one with the start-up file alone. Many short runs a round."""
    with tempfile.TemporaryDirectory() as folder:
        bare, ours = Path(folder, "bare"), Path(folder, "ours")
        for place in (bare, ours):
            place.mkdir()
        site = ROOT / "cudaguard" / "_site"
        for file in (site / "cudaguard.pth", site / "_cudaguard_start.py"):
            (ours / file.name).write_bytes(file.read_bytes())
        code = "import site, sys, time\nbefore = time.perf_counter()\nsite.addsitedir(sys.argv[1])\nprint(time.perf_counter() - before)"

        def once(place: Path) -> float:
            return statistics.median(run(code, {"PYTHONDONTWRITEBYTECODE": ""}, str(place)) for _ in range(5))

        once(ours)  # compile it, as an installation does
        return sides("start-up file, variable unset", lambda: once(bare), lambda: once(ours), "< 0.5 ms more", lambda a, b, _: b - a < 0.0005)


def hook(depth: int) -> Row:
    """The work of the hooks at one fork."""
    times = [run(HOOK.replace("DEPTH", str(depth)), {"CUDAGUARD_SIMULATE": "1", "CUDAGUARD": "error"}) for _ in range(ROUNDS)]
    middle = statistics.median(times)
    return Row(f"hooks at a fork, {depth} frames deep", None, middle, None, "< 50 us", middle < 50e-6)


def rows() -> Iterator[Row]:
    """The whole table, as it comes."""

    def first(_a: float, b: float, _r: float) -> bool:
        return b < 0.015

    def nothing(*_: float) -> None:
        """No budget."""

    yield start()
    yield sides("import cudaguard", lambda: run(IMPORT, {}, "none"), lambda: run(IMPORT, {}, "guard"), "< 15 ms", first)
    yield hook(5)
    yield hook(100)
    yield mode(EPOCH, "CPU-only loader epoch, 3000 batches", "<= 1.01", lambda _a, _b, ratio: ratio <= 1.01, simulate=False)
    yield traced("the same under trace", "< 1.03", lambda _a, _b, ratio: ratio < 1.03)
    yield traced("the same under trace --deep", "", nothing, "--deep")
    for depth in (5, 100):
        yield mode(FORK.replace("DEPTH", str(depth)), f"os.fork, {depth} frames deep", "", nothing)
    for call, busy in (("_lazy_init", True), ("is_available", False), ("is_available", True)):
        name = f"{call}, {'initialised' if busy else 'before'}"
        yield mode(CALL.replace("CALL", call).replace("BUSY", str(busy)), name, "", nothing)


def shown(seconds: float | None) -> str:
    """A time in the unit that suits it."""
    if seconds is None:
        return "-"
    scale, unit = next(((s, u) for s, u in ((1, "s"), (1e3, "ms"), (1e6, "us")) if seconds * s >= 1), (1e9, "ns"))
    return f"{seconds * scale:.2f} {unit}"


def main() -> int:
    """Print the table; the exit code says whether every budget was kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 rounds in place of 9")
    parser.parse_args()
    print(f"{'what':<38} {'without':>10} {'guard':>10} {'ratio':>7}  {'budget':<14} kept")
    kept_all = True
    for row in rows():
        ratio = f"{row.ratio:.3f}" if row.ratio is not None and row.ratio < 1000 else "-"
        kept = {True: "yes", False: "NO", None: ""}[row.met]
        print(f"{row.what:<38} {shown(row.without):>10} {shown(row.guarded):>10} {ratio:>7}  {row.budget:<14} {kept}", flush=True)
        kept_all = kept_all and row.met is not False
    return 0 if kept_all else 1


if __name__ == "__main__":
    sys.exit(main())
