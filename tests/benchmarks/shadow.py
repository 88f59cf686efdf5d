#!/usr/bin/env python3
"""What the shadow costs per torch call: the same calls on CPU tensors of an untouched process, of a simulated one, and on its shadows.

    python tests/benchmarks/shadow.py

Each figure is the best of several rounds, in nanoseconds. The budget is 3 µs more per call on a shadow, and nothing on a CPU tensor but
where its own functions are asked (``to``, factories).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import timeit
from collections.abc import Callable
from typing import Any

CALLS, ROUNDS = 500, 200  # short rounds and many: on a busy machine some of them run undisturbed


def calls(a: Any, b: Any) -> dict[str, Callable[[], Any]]:
    import torch

    return {
        "a + b": lambda: a + b,
        "a[0]": lambda: a[0],
        "a.add_(1)": lambda: a.add_(1),
        "torch.cat([a, b])": lambda: torch.cat([a, b]),
        "a.device": lambda: a.device,
        "a.shape": lambda: a.shape,
        "a.requires_grad": lambda: a.requires_grad,
        "a.grad": lambda: a.grad,
        "a.data": lambda: a.data,
        "a.to(a.dtype)": lambda: a.to(a.dtype),
        "a.to(a.device)": lambda: a.to(a.device),
        "torch.zeros(4)": lambda: torch.zeros(4),
        "torch.zeros_like(a)": lambda: torch.zeros_like(a),
    }


def measure(device: str) -> dict[str, float]:
    import torch

    torch.set_num_threads(1)
    a, b = torch.ones(4).to(device), torch.ones(4).to(device)
    return {name: min(timeit.repeat(call, number=CALLS, repeat=ROUNDS)) / CALLS * 1e9 for name, call in calls(a, b).items()}


def elsewhere(count: str, device: str) -> dict[str, float]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CUDA")}
    clean.update(CUDAGUARD="off", CUDAGUARD_SIMULATE=count)
    done = subprocess.run([sys.executable, __file__, device], env=clean, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    columns = [elsewhere("0", "cpu"), elsewhere("1", "cpu"), elsewhere("1", "cuda")]
    print(f"{'ns per call':22s}{'untouched':>11s}{'CPU tensor':>12s}{'shadow':>9s}{'more':>8s}")
    for name in columns[0]:
        plain, beside, shadow = (column[name] for column in columns)
        print(f"{name:22s}{plain:11.0f}{beside:12.0f}{shadow:9.0f}{shadow - plain:8.0f}")


if __name__ == "__main__":
    main()
