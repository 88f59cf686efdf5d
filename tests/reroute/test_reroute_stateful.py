"""torchdata's StatefulDataLoader: what a worker's state has on the GPU crosses too, and an error about a state reaches the parent."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rerouted import Ran

pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")

PROGRAM = """
    import torch
    import threading
    from torch.utils.data import IterableDataset
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Numbers(IterableDataset):
        def __init__(self): self.i, self.last = 0, None
        def __iter__(self):
            while self.i < 6:
                self.i += 1
                self.last = torch.full((2,), float(self.i), device="cuda")
                yield self.last
        def state_dict(self): return {"i": self.i, "last": self.last}
        def load_state_dict(self, state):
            self.i, self.last = state["i"], state["last"]
            assert self.last.is_cuda and self.last.tolist() == [2.0, 2.0], self.last

    def loader(data, **options):
        return StatefulDataLoader(data, num_workers=1, batch_size=2, multiprocessing_context="fork", **options)

    warm = torch.zeros(1, device="cuda")
"""


def test_a_state_on_the_gpu_is_kept_and_gone_on_from(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        PROGRAM
        + """
    first = loader(Numbers())
    it = iter(first)
    assert next(it).tolist() == [[1.0, 1.0], [2.0, 2.0]]
    state = first.state_dict()
    kept = state["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"]
    assert kept["i"] == 2 and kept["last"].is_cuda
    again = loader(Numbers())
    again.load_state_dict(state)
    print([(batch.device.type, batch[:, 0].tolist()) for batch in again])
    """
    ).ok()
    assert ran.out == "[('cuda', [3.0, 4.0]), ('cuda', [5.0, 6.0])]\n"


@pytest.mark.parametrize("when", ["at the start", "with a batch"])
def test_a_state_that_cannot_be_sent_is_named(reroute: Callable[..., Ran], when: str) -> None:
    """torchdata waits for an acknowledgement of a kind of its own: an error in its place it would not understand."""
    ran = reroute(
        PROGRAM
        + f"""
    class Locked(Numbers):
        def state_dict(self): return {{"lock": threading.Lock() if {when == "at the start"} or self.i else None}}
    import cudaguard
    try:
        next(iter(loader(Locked())))
    except cudaguard.WorkerOutputError as error:
        print(error)
    """
    ).ok()
    assert "main process: state[" in ran.out and "'lock'" in ran.out, ran.out
    assert "unsendable-output" in ran.slugs()


def test_pinning_a_state_that_is_on_the_gpu_is_told(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        PROGRAM
        + """
    import cudaguard
    try:
        next(iter(loader(Numbers(), pin_memory=True)))
    except cudaguard.WorkerOutputError as error:
        print(error.finding["slug"])
    """
    ).ok()
    assert ran.out == "pin-cuda-output\n"
