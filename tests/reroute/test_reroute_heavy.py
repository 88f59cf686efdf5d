"""GPU work that runs on the CPU in a rerouted worker: told where it is a good part of the worker's time, and measured in few batches."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from rerouted import Ran

# `work` takes a time that is known, as a kernel would.
HEAD = """
    import time
    import torch, cudaguard
    from torch.utils.data import DataLoader, Dataset

    timed = torch.library.Library("timed", "DEF")
    timed.define("work(Tensor x, float seconds) -> Tensor")
    timed.impl("work", lambda x, seconds: (time.sleep(seconds), x + 1)[1], "CPU")
    work = torch.ops.timed.work

    class Rows(Dataset):
        def __init__(self, n=8): self.n = n
        def __len__(self): return self.n
        def __getitem__(self, i):
            time.sleep(0.01)
            x = torch.full((2,), float(i)).cuda()
            return self.step(x)

    def load(data, **options):
        options = {"num_workers": 1, "batch_size": None, **options}
        return DataLoader(data, multiprocessing_context="fork", timeout=60, **options)

    def messages():
        return [f["message"] for f in cudaguard.report().findings if f["slug"] == "rerouted"]

"""
MAIN = """
    if __name__ == "__main__":
        warm = torch.zeros(1, device="cuda")
"""


def heavy(ran: Ran) -> list[str]:
    """The lines that speak of heavy work."""
    return [line for line in ran.told() if "of the workers' time" in line]


def share(text: str) -> int:
    """The share that a line tells, in %."""
    found = re.search(r"(\d+) % of the workers' time goes into GPU work that runs on the CPU there", text)
    assert found, text
    return int(found.group(1))


def test_heavy_work_is_told_once_with_its_share(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        HEAD
        + """
    class Heavy(Rows):
        def step(self, x):
            return work(x, 0.03)
    """
        + MAIN
        + """
        loader = load(Heavy(), num_workers=2)
        for epoch in range(2):
            assert all(x.is_cuda for x in loader)
        print("MESSAGE", [m for m in messages() if "%" in m])
    """
    ).ok()
    (line,) = heavy(ran)
    said = re.search(r"program.py:29: \d\d % .* \(torch.ops.timed.work; (\d+) of (\d+) ms a batch\); do it after the loader, on the GPU$", line)
    assert said and abs(share(line) - 100 * int(said.group(1)) / int(said.group(2))) <= 3, line
    assert 40 <= share(line) <= 80 and 30 <= int(said.group(1)) < int(said.group(2))
    assert line.split(": ", 2)[2].rpartition(";")[0] in ran.out  # in report() too
    found = [f for f in ran.report if "%" in f["message"]]
    assert {(f["slug"], f["touch"]["line"], f["touch"]["code"], f["touch"]["call"]) for f in found} == {
        ("rerouted", 29, "return work(x, 0.03)", "torch.ops.timed.work")
    }
    assert all(f["advice"][0]["id"] == "move-in-parent" and "after the loader" in f["advice"][0]["text"] for f in found)
    assert len({f["pid"] for f in found}) == len(found) <= 4  # once a worker


LIGHT = {
    "a small share": ("time.sleep(0.06); return work(x, 0.006)", 8),
    "a short time": ("return [work(x, 0.0001) for _ in range(3)][0]", 8),
    "no work": ("return torch.stack([x.expand(500_000, 2).contiguous().clone() for _ in range(4)])", 8),
    "a first batch": ("return work(x, 0.2 if x[0] == 0 else 0.0)", 8),
    "one batch": ("return work(x, 0.1)", 1),
}


@pytest.mark.parametrize("kind", LIGHT)
def test_what_is_not_worth_a_word(reroute: Callable[..., Ran], kind: str) -> None:
    step, n = LIGHT[kind]
    program = (
        HEAD + f"\n    class Light(Rows):\n        def step(self, x): {step}\n" + MAIN + f"\n        print('RESULT', len(list(load(Light({n})))))\n"
    )
    ran = reroute(program.replace("time.sleep(0.01)", "time.sleep(0)") if kind == "a short time" else program).ok()
    assert f"RESULT {n}" in ran.out
    assert len(ran.told()) == 2 and not heavy(ran)  # the line of .cuda(), and the summary


def test_a_first_batch_that_works_for_a_second_is_enough_and_a_call_within_a_call_counts_once(reroute: Callable[..., Ran]) -> None:
    """Data that the parent copied is dispatched anew at its first use: a call within the call."""
    ran = reroute(
        HEAD
        + """
    class Held(Dataset):
        def __init__(self): self.table = torch.ones(2, device="cuda")
        def __len__(self): return 1
        def __getitem__(self, i):
            time.sleep(0.4)
            return work(self.table, 1.2)
    """
        + MAIN
        + """
        assert [x.is_cuda for x in load(Held())] == [True]
        (message,) = messages()
        print("MESSAGE", message)
    """
    ).ok()
    (line,) = heavy(ran)
    assert 60 <= share(line) <= 78  # 75 of 100 where nothing else runs on the machine
    assert share(ran.out.partition("MESSAGE")[2]) == share(line)  # the line is one that was rerouted: one finding says both
    (found,) = ran.report
    assert share(found["message"]) == share(line) and "stays on the CPU" in found["message"]


def test_a_line_that_is_known_already_is_told_more_of(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        HEAD
        + """
    class Heavy(Rows):
        def __getitem__(self, i): return work(torch.full((2,), float(i)).cuda(), 0.02)
    """
        + MAIN
        + """
        assert all(x.is_cuda for x in load(Heavy()))
        (message,) = messages()
        print("MESSAGE", message)
        print("TEXT", cudaguard.report())
    """
    ).ok()
    (line,) = heavy(ran)
    assert share(line) >= 85
    assert "stays on the CPU" in ran.out.partition("MESSAGE")[2] and ran.out.count(f"{share(line)} % of the workers' time") >= 2
    assert len(ran.report) == 1  # a place is reported once


def test_work_that_is_spread_over_many_lines_is_told_at_the_longest(reroute: Callable[..., Ran]) -> None:
    lines = "\n".join(f"            x = work(x, 0.0{3 + (n == 5)})" for n in range(8))
    ran = reroute(
        HEAD + f"\n    class Spread(Rows):\n        def step(self, x):\n{lines}\n            return x\n" + MAIN + "\n        list(load(Spread()))\n"
    ).ok()
    (line,) = heavy(ran)
    assert "program.py:34: " in line and ", most of it here (torch.ops.timed.work" in line
    assert share(line) >= 90


def test_backward_is_work_and_results_on_the_cpu_count(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        HEAD
        + """
    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x): return x.view_as(x)
        @staticmethod
        def backward(ctx, grad): return (time.sleep(0.03), grad * 1)[1]

    class Heavy(Rows):
        def step(self, x):
            x.requires_grad_()
            y = Slow.apply(x).sum()
            y.backward()
            return x.grad.cpu()
    """
        + MAIN
        + """
        assert not any(x.is_cuda for x in load(Heavy()))
    """
    ).ok()
    (line,) = heavy(ran)
    assert "program.py:37: " in line and "(torch.Tensor.backward; " in line


LOOKING = """
    def usual():
        from cudaguard._shadow import _dispatch
        from cudaguard._shadow._tensor import ShadowTensor
        here = ShadowTensor.__torch_function__.__func__ is _dispatch.dispatch
        assert here == (ShadowTensor.backward.__module__ == ShadowTensor.__module__)
        return here
"""


def test_a_scripted_function_is_work_too(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        HEAD
        + """
    @torch.jit.script
    def scripted(x):
        return torch.ops.timed.work(x, 0.03)

    class Heavy(Rows):
        def step(self, x):
            return scripted(x)
    """
        + MAIN
        + """
        assert all(x.is_cuda for x in load(Heavy()))
    """
    ).ok()
    (line,) = heavy(ran)
    assert "program.py:33: " in line and "(scripted; " in line


def test_other_batches_run_as_always(reroute: Callable[..., Ran]) -> None:
    """Only batches 1, 2, 4 and 8 go through the slower dispatcher, and one that fails leaves nothing behind."""
    ran = reroute(
        HEAD
        + LOOKING
        + """
    class Looking(Rows):
        def step(self, x):
            if x[0] == 3:
                raise KeyError("mine")
            return usual()
    """
        + MAIN
        + """
        found, batches = [], iter(load(Looking()))
        for _ in range(8):
            try:
                found.append(next(batches))
            except KeyError:
                found.append("failed")
        print("RESULT", found)
    """
    ).ok()
    assert "RESULT [False, False, True, 'failed', True, True, True, False]" in ran.out


def test_a_batch_of_very_many_calls_is_not_timed_to_its_end(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        HEAD
        + LOOKING
        + """
    class Many(Rows):
        def step(self, x):
            found = []
            for n in range(3):
                found.append(usual())
                for _ in range(4000): x + x
            return found
    """
        + MAIN
        + """
        print("RESULT", list(load(Many(2))))
    """
    ).ok()
    assert "RESULT [[False, False, True], [False, False, True]]" in ran.out


def test_who_does_not_want_to_hear_of_it_does_not(reroute: Callable[..., Ran]) -> None:
    program = HEAD + "\n    class Heavy(Rows):\n        def step(self, x): return work(x, 0.02)\n" + MAIN + "\n        list(load(Heavy()))\n"
    assert heavy(reroute(program).ok())
    ran = reroute(program, CUDAGUARD_IGNORE="rerouted").ok()
    assert ran.told() == [] and ran.report == []
