"""`run --inline-workers`: the program runs without workers, and hears what that proves."""

from __future__ import annotations

import pytest

SIMULATED = {"CUDAGUARD_SIMULATE": "1"}
TRAIN = """\
import sys, torch
from torch.utils.data import DataLoader

class Data:
    def __len__(self): return 2
    def __getitem__(self, i):
        assert torch.utils.data.get_worker_info() is None
        return {item}

if __name__ == "__main__":
    {start}
    loader = DataLoader(Data(), num_workers=2, timeout=9, persistent_workers=True, prefetch_factor=3, multiprocessing_context="fork")
    for epoch in range(2):
        for batch in loader:
            print(batch.device.type)
    {end}
"""


def _train(write, item="torch.ones(1)", start="pass", end="pass"):
    write("train.py", TRAIN.format(item=item, start=start, end=end))


def test_a_broken_loader_works_and_the_proof_names_the_touch(cudaguard, write):
    _train(write, item="torch.ones(1).cuda()")
    result = cudaguard("run", "--inline-workers", "train.py", env=SIMULATED)
    assert (result.returncode, result.stdout) == (0, "cuda\n" * 4), result.stderr
    assert "without workers (num_workers=0), and the program ended well:\n  train.py:14 " in result.stderr
    assert result.stderr.count("num_workers=2\n") == 1
    assert "then making processes is to blame" in result.stderr
    assert "Here train.py:8 used CUDA while a batch was made" in result.stderr


def test_what_fails_anyway_is_not_the_workers_fault(cudaguard, write):
    _train(write, end="sys.exit(5)")
    result = cudaguard("run", "--inline-workers", "train.py")
    assert result.returncode == 5
    assert "and the program still failed (exit code 5)" in result.stderr
    assert "forking a loader's workers is not to blame" in result.stderr


def test_without_cuda_it_proves_nothing_about_cuda(cudaguard, write):
    _train(write)
    result = cudaguard("run", "--inline-workers", "train.py")
    assert result.returncode == 0
    assert "CUDA was not used at all in this run" in result.stderr


def test_without_workers_it_proves_nothing(cudaguard):
    result = cudaguard("run", "--inline-workers", "-c", "print('ran')", "a")
    assert (result.returncode, result.stdout) == (0, "ran\n")
    assert "no loader of this program used workers" in result.stderr


@pytest.mark.parametrize(("flags", "env"), [(("--mode", "off"), {}), ((), {"CUDAGUARD": "off"})])
def test_it_needs_the_guard(cudaguard, flags, env):
    result = cudaguard("run", *flags, "--inline-workers", "-c", "pass", env=env)
    assert (result.returncode, result.stderr) == (2, "cudaguard: --inline-workers needs the guard: it is off\n")


def test_torchdatas_loader_and_spawned_children_are_changed_too(cudaguard, write):
    pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")
    write(
        "spawned.py",
        """
        import multiprocessing
        def work():
            import torch
            from torchdata.stateful_dataloader import StatefulDataLoader
            loader = StatefulDataLoader([1, 2], num_workers=1, multiprocessing_context="fork")
            print([int(batch) for batch in loader], loader.num_workers, flush=True)
        if __name__ == "__main__":
            child = multiprocessing.get_context("spawn").Process(target=work)
            child.start(); child.join()
        """,
    )
    result = cudaguard("run", "--inline-workers", "spawned.py")
    assert result.stdout == "[1, 2] 0\n", result.stderr
    assert "spawned.py:7 " in result.stderr
