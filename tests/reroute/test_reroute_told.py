"""What a rerouted worker says on stderr."""

from __future__ import annotations

from collections.abc import Callable

from rerouted import Ran


def test_code_without_source_is_told_by_the_line_that_runs_it(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        """
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Rows(Dataset):
            def __len__(self): return 2
            def __getitem__(self, i):
                scope = {"torch": torch}
                exec("x = torch.ones(1).cuda()", scope)
                return scope["x"]

        if __name__ == "__main__":
            warm = torch.zeros(1, device="cuda")
            for x in DataLoader(Rows(), num_workers=1, multiprocessing_context="fork", timeout=20):
                assert x.is_cuda
        """
    ).ok()
    first = ran.told()[0]
    assert 'program.py:9: `exec("x = torch.ones(1).cuda()", scope)` stays on the CPU in the worker; batches of 4 B' in first
    assert "`batch.to" in first and "``" not in first
