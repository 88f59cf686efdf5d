"""Speed of rerouted loaders against the hand-fixed script, spawned workers and no workers. Run it on a machine with a GPU.

    python tests/benchmarks/reroute.py                          64x3x224x224, 8 workers, every way, 3 alternating rounds
    python tests/benchmarks/reroute.py --ways hand reroute --rounds 5
    python tests/benchmarks/reroute.py --ways hand ahead reroute --work 12      with twelve matrix products a batch: the GPU is the bottleneck
    python tests/benchmarks/reroute.py --shadow                 cost of the shadow for each torch call, in a rerouted worker
    CUDAGUARD_SIMULATE=1 python tests/benchmarks/reroute.py --batch 8 --side 32 --batches 10 --workers 2      a dry run

The ways: `hand` builds on the CPU, pinned, and moves batches in the loop with non_blocking; `ahead` is that with the next batch copied on a
stream of its own while the current one is used, which is what a faster delivery would have to do; `reroute` has `.cuda()` in `__getitem__` under
CUDAGUARD=reroute; `spawn` and `forkserver` have `.cuda()` in `__getitem__`, without the guard; `zero` is num_workers=0. Every way runs in a
process of its own; a line of JSON for each, then medians, and the ratios that the budgets are about.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import timeit

WAYS = ("hand", "ahead", "reroute", "spawn", "forkserver", "zero")
GUARDED = {"reroute"}
ON_CPU = {"hand", "ahead"}  # ways whose dataset stays on the CPU


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--side", type=int, default=224, help="images of 3 x side x side")
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--no-pin", action="store_true", help="pin_memory=False for reroute")
    parser.add_argument("--work", type=int, default=0, help="matrix products of 8192 x 8192 on the GPU for each batch")
    parser.add_argument("--shadow", action="store_true")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    return parser.parse_args()


class Images:
    """Images as a decoder gives them: bytes, turned into floats. `device` as the user wrote it."""

    def __init__(self, count, side, device):
        import torch

        self.count, self.device = count, device
        self.raw = torch.randint(0, 256, (16, 3, side, side), dtype=torch.uint8)

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        image = self.raw[i % 16].float().div(255)
        return (image.cuda() if self.device == "cuda" else image), i


def loader_of(args, way):
    from torch.utils.data import DataLoader

    data = Images(args.batch * args.batches, args.side, "cpu" if way in ON_CPU else "cuda")
    workers = 0 if way == "zero" else args.workers
    method = way if way in ("spawn", "forkserver") else "fork"
    pin = way in ON_CPU or (way == "reroute" and not args.no_pin)
    options = {"multiprocessing_context": method, "timeout": 120} if workers else {}
    return DataLoader(data, batch_size=args.batch, num_workers=workers, pin_memory=pin, **options)


def moved(batches):
    """Each batch on the GPU, copied on the current stream when it is asked for."""
    for images, _ in batches:
        yield images.to("cuda", non_blocking=True)


def moved_ahead(batches):
    """Each batch on the GPU, its copy begun on a stream of its own before the one before it is used."""
    import torch

    side, use, waiting = torch.cuda.Stream(), torch.cuda.current_stream(), None
    for images, _ in batches:
        with torch.cuda.stream(side):
            coming = images.to("cuda", non_blocking=True)
        if waiting is not None:
            yield waiting
        use.wait_stream(side)
        coming.record_stream(use)
        waiting = coming
    yield waiting


def delivered(batches):
    """Each batch, which is on the GPU."""
    for images, _ in batches:
        yield images


MOVES = {"hand": moved, "ahead": moved_ahead}


def used(torch):
    free, total = torch.cuda.mem_get_info()
    return total - free


def resident(pid):
    """Bytes of a process that it shares with nobody."""
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def one(args, way):
    """Run one way here and print what it took."""
    import torch

    weight = torch.ones(1, device="cuda")
    matrix = torch.ones(8192, 8192, device="cuda", dtype=torch.bfloat16) if args.work else None
    torch.cuda.synchronize()
    before, start = used(torch), time.perf_counter()
    seen, first, memory, private = 0, None, 0, 0
    iterator = iter(loader_of(args, way))
    for n, images in enumerate(MOVES.get(way, delivered)(iterator)):
        total = images[0, 0, 0].sum() * weight  # a little work that uses the batch
        for _ in range(args.work):
            matrix @ matrix
        if first is None:
            total.item()
            first, start_rest = time.perf_counter() - start, time.perf_counter()
        if n == args.batches // 2 and way != "zero":
            memory, private = used(torch) - before, max(resident(w.pid) for w in iterator._workers)
        seen += len(images)
    torch.cuda.synchronize()
    rest = time.perf_counter() - start_rest
    figures = {"way": way, "samples/s": (seen - args.batch) / rest, "first batch s": first, "gpu MB": memory / 1e6, "worker MB": private / 1e6}
    print(json.dumps({name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}), flush=True)


def run(args, way):
    """One way in a process of its own."""
    env = {name: value for name, value in os.environ.items() if name != "CUDAGUARD"}
    env["CUDAGUARD"] = "reroute" if way in GUARDED else "off"
    command = [sys.executable, os.path.abspath(__file__), "--one", way, *sys.argv[1:]]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout.strip().splitlines()[-1], flush=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(args):
    rows = [run(args, way) for _ in range(args.rounds) for way in args.ways]
    median = {way: {name: statistics.median(r[name] for r in rows if r["way"] == way) for name in rows[0] if name != "way"} for way in args.ways}
    for way, figures in median.items():
        print(f"{way:11s}", "  ".join(f"{name} {value:10.2f}" for name, value in figures.items()))
    if {"hand", "reroute"} <= median.keys():
        print(f"reroute / hand-fixed, samples/s: {median['reroute']['samples/s'] / median['hand']['samples/s']:.3f} (budget: at least 0.97)")
    if {"spawn", "reroute"} <= median.keys():
        print(f"reroute / spawn, first batch: {median['reroute']['first batch s'] / median['spawn']['first batch s']:.3f} (budget: at most 0.1)")


class Calls:
    """In a worker: nanoseconds a call takes on a shadow and on a plain tensor."""

    NAMES = ("a + a", "a[0]", "a.shape", "a.device", "a.float()", "a.view(2, 2)", "a.to('cuda')", "torch.stack([a, a])")

    def __len__(self):
        return len(self.NAMES)

    def __getitem__(self, i):
        import torch

        plain = torch.ones(4)
        scopes = [{"a": a, "torch": torch} for a in (plain, plain.cuda())]
        code = [self.NAMES[i].replace("'cuda'", "'cpu'"), self.NAMES[i]]
        return [min(timeit.repeat(c, globals=s, number=5000, repeat=5)) / 5000 * 1e9 for c, s in zip(code, scopes, strict=True)]


def shadow():
    import torch
    from torch.utils.data import DataLoader

    warm = torch.zeros(1, device="cuda")
    for name, row in zip(Calls.NAMES, DataLoader(Calls(), batch_size=None, num_workers=1, multiprocessing_context="fork"), strict=True):
        print(f"{name:36s} plain {row[0]:8.0f} ns   shadow {row[1]:8.0f} ns   more {row[1] - row[0]:8.0f} ns (budget: under 2000)")
    assert warm.is_cuda


def main():
    args = parse()
    if args.one:
        one(args, args.one)
    elif args.shadow and os.environ.get("CUDAGUARD") != "reroute":
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "CUDAGUARD": "reroute"})
    elif args.shadow:
        shadow()
    else:
        compare(args)


if __name__ == "__main__":
    main()
