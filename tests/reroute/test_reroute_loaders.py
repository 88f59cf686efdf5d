"""Loaders of every form behave as without the guard."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
from rerouted import Ran
from torch.utils.data import DataLoader

ROWS = """
    import os, sys, time
    import torch, cudaguard
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    class Rows(Dataset):
        def __init__(self, n=8): self.n = n
        def __len__(self): return self.n
        def __getitem__(self, i): return torch.full((2,), float(i)).cuda()  # here

    class Stream(IterableDataset):
        def __iter__(self):
            info = torch.utils.data.get_worker_info()
            yield from (torch.tensor([float(n)]).cuda() for n in range(info.id, 6, info.num_workers))

    def load(data, **options):
        return DataLoader(data, multiprocessing_context="fork", timeout=20, **options)

    def values(batches):
        batches = list(batches)
        assert all(b.device == torch.device("cuda:0") for b in batches)
        return sorted(x for b in batches for x in b.reshape(-1).tolist())

    if __name__ == "__main__":
        warm = torch.zeros(1, device="cuda")
"""
EIGHT = "sorted([float(i) for i in range(8)] * 2)"
FORMS = {
    "persistent": f"""
        loader = load(Rows(), batch_size=2, num_workers=2, persistent_workers=True)
        for epoch in range(3):
            assert values(loader) == {EIGHT}
    """,
    "out of order": f"""
        loader = load(Rows(), batch_size=2, num_workers=2, in_order=False)
        assert values(loader) == {EIGHT}
    """,
    "iterable": """
        assert values(load(Stream(), batch_size=2, num_workers=2)) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """,
    "no batches": f"""
        assert values(load(Rows(), batch_size=None, num_workers=2)) == {EIGHT}
    """,
    "pinned": f"""
        assert values(load(Rows(), batch_size=4, num_workers=2, pin_memory=True)) == {EIGHT}
    """,
    "two at once": f"""
        one, two = load(Rows(), batch_size=2, num_workers=1), load(Rows(), batch_size=2, num_workers=1)
        pairs = list(zip(one, two))
        assert values(a for a, _ in pairs) == values(b for _, b in pairs) == {EIGHT}
    """,
    "early break": """
        loader = load(Rows(40), batch_size=2, num_workers=2)
        for batch in loader:
            break
        assert values([batch]) == [0.0, 0.0, 1.0, 1.0]
    """,
    "threads": f"""
        import threading
        class Threaded(Rows):
            def __getitem__(self, i):
                out = []
                thread = threading.Thread(target=lambda: out.append(super(Threaded, self).__getitem__(i)))
                thread.start(); thread.join()
                return out[0]
        assert values(load(Threaded(), batch_size=2, num_workers=1)) == {EIGHT}
    """,
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_loaders(reroute: Callable[..., Ran], form: str) -> None:
    if "in_order" in FORMS[form] and "in_order" not in inspect.signature(DataLoader).parameters:
        pytest.skip("this torch's loaders have no in_order")
    ran = reroute(ROWS + FORMS[form] + "\n        print('RESULT ok')\n").ok()
    assert "RESULT ok" in ran.out
    assert "rerouted" in ran.slugs()


def test_an_error_of_the_dataset_is_the_datasets(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        ROWS
        + """
        class Bad(Rows):
            def __getitem__(self, i):
                x = super().__getitem__(i)
                raise KeyError("mine")
        try:
            list(load(Bad(), num_workers=1))
        except KeyError as error:
            print("RESULT ok", "mine" in str(error))
        """
    ).ok()
    assert "RESULT ok True" in ran.out


def test_a_slow_worker_times_out(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        ROWS
        + """
        class Slow(Rows):
            def __getitem__(self, i):
                time.sleep(30)
        try:
            list(DataLoader(Slow(), num_workers=1, timeout=1, multiprocessing_context="fork"))
        except RuntimeError as error:
            print("RESULT ok", "timed out" in str(error))
        """
    ).ok()
    assert "RESULT ok True" in ran.out


def test_a_killed_worker_is_noticed(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        ROWS
        + """
        class Dying(Rows):
            def __getitem__(self, i):
                super().__getitem__(i)
                os._exit(3)
        try:
            list(load(Dying(), num_workers=1))
        except RuntimeError as error:
            print("RESULT ok", "exited unexpectedly" in str(error))
        """
    ).ok()
    assert "RESULT ok True" in ran.out


def test_outputs_without_gpu_data_are_not_wrapped(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        ROWS
        + """
        from cudaguard._reroute import _parcel
        made = []
        original = _parcel.pack
        _parcel.pack = lambda data: os._exit(9)  # a worker that packs would die of it
        class Plain(Rows):
            def __getitem__(self, i): return {"x": torch.full((2,), float(i)), "free": torch.cuda.mem_get_info()[0], "n": torch.cuda.device_count()}
        batches = list(load(Plain(), batch_size=4, num_workers=2))
        assert [b["x"][:, 0].tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert batches[0]["n"].tolist() == [2] * 4
        print("RESULT ok")
        """
    ).ok()
    assert "RESULT ok" in ran.out
    assert ran.slugs() == [] and ran.told() == []


def test_each_line_is_told_once_and_counted(reroute: Callable[..., Ran]) -> None:
    ran = reroute(ROWS + "        assert values(load(Rows(), batch_size=2, num_workers=2)) == " + EIGHT + "\n").ok()
    told = ran.told()
    assert len(told) == 2, told
    assert "program.py:9:" in told[0] and "batches of 16 B" in told[0] and "return torch.full((2,), float(i))`" in told[0]
    assert told[1].endswith("program.py:9: 4 batches, 64 B in all")


@pytest.mark.parametrize("mode", ["record", "warn", "error"])
def test_one_loader_may_be_rerouted_in_any_mode(reroute: Callable[..., Ran], mode: str) -> None:
    ran = reroute(
        ROWS
        + f"""
        loader = load(Rows(), batch_size=2, num_workers=2)
        assert cudaguard.reroute(loader) is loader
        assert values(loader) == {EIGHT}
        print("RESULT ok")
        """,
        mode=mode,
    ).ok()
    assert "RESULT ok" in ran.out
    assert set(ran.slugs()) == {"rerouted"}


def test_reroute_takes_loaders_only() -> None:
    import cudaguard

    with pytest.raises(TypeError, match="DataLoader"):
        cudaguard.reroute([1, 2, 3])


def test_names_imported_from_torch_are_rerouted_too(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        """
        import torch
        from torch import tensor, zeros
        from torch.cuda import current_device
        from torch.utils.data import DataLoader, Dataset

        class Rows(Dataset):
            def __len__(self): return 2
            def __getitem__(self, i): return tensor([float(i)], device="cuda") + zeros(1, device="cuda"), current_device()

        if __name__ == "__main__":
            warm = zeros(1, device="cuda")
            for x, device in DataLoader(Rows(), num_workers=1, multiprocessing_context="fork", timeout=20):
                assert x.is_cuda and device.tolist() == [0]
            print("RESULT ok")
        """
    ).ok()
    assert "RESULT ok" in ran.out


def test_pools_are_not_rerouted(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        """
        import multiprocessing, torch, cudaguard

        def job(i): return torch.ones(1).cuda().item()

        if __name__ == "__main__":
            warm = torch.zeros(1, device="cuda")
            with multiprocessing.get_context("fork").Pool(1) as pool:
                try:
                    pool.map(job, [1])
                except cudaguard.CudaForkError as error:
                    print("RESULT ok", error.finding["slug"])
        """
    ).ok()
    assert "RESULT ok fork-after-init" in ran.out


@pytest.mark.parametrize("on", [True, False])
def test_the_garbage_collector_is_left_as_the_program_wants_it(reroute: Callable[..., Ran], on: bool) -> None:
    """It pauses while the guard prepares workers: one collection of torch's objects takes longer than all of that."""
    ran = reroute(
        f"""
        import gc, torch
        from torch.utils.data import DataLoader, Dataset

        class Asking(Dataset):
            def __len__(self): return 1
            def __getitem__(self, i):
                return torch.tensor(gc.isenabled()).cuda()

        if __name__ == "__main__":
            if not {on}: gc.disable()
            warm = torch.zeros(1, device="cuda")
            (batch,) = DataLoader(Asking(), num_workers=1, multiprocessing_context="fork", timeout=60)
            print(batch.device.type, batch.tolist(), gc.isenabled())
        """
    ).ok()
    assert ran.out == f"cuda [{on}] {on}\n"


INNER = """
    import torch
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    class Inner(Dataset):
        def __len__(self): return 4
        def __getitem__(self, i): return torch.as_tensor([float(i)]).to(device="cuda")

    class Outer(IterableDataset):
        def __init__(self): self.inner = DataLoader(Inner(), batch_size=2)
        def __iter__(self):
            for batch in self.inner:
                assert type(batch).__name__ == "Tensor" and batch.is_cuda, type(batch)
                yield batch.flatten() + 1

    def init(worker):
        for batch in DataLoader(Inner(), batch_size=4):
            assert batch.sum().item() == 6.0

    if __name__ == "__main__":
        if METHOD == "fork":
            warm = torch.zeros(1, device="cuda")
        options = dict(num_workers=1, multiprocessing_context=METHOD, worker_init_fn=init, timeout=60)
        loader = KIND(Outer(), batch_size=None, persistent_workers=True, **options)
        for epoch in range(2):
            seen = list(loader)
            assert all(batch.is_cuda for batch in seen) and torch.cat(seen).tolist() == [1.0, 2.0, 3.0, 4.0], seen
        print("RESULT ok")
"""
STATEFUL = "from torchdata.stateful_dataloader import StatefulDataLoader as KIND"


@pytest.mark.parametrize("kind", ["KIND = DataLoader", STATEFUL])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_loader_inside_a_dataset_gives_it_its_own_batches(reroute: Callable[..., Ran], method: str, kind: str) -> None:
    """What it fetches is for the dataset, in the worker: only what the worker sends is packed."""
    if kind == STATEFUL:
        pytest.importorskip("torchdata.stateful_dataloader")
    source = INNER.replace("    class Inner", f"    {kind}\n    METHOD = {method!r}\n\n    class Inner", 1)
    assert reroute(source).ok().out == "RESULT ok\n"


LEGACY = """
    import warnings
    import torch
    from torch.utils.data import DataLoader, Dataset

    warnings.simplefilter("ignore")

    class Rows(Dataset):
        def __len__(self): return 2
        def __getitem__(self, i): return torch.Tensor([i, i + 1]), torch.Tensor(2, 3).fill_(i), torch.tensor([1.5])

    if __name__ == "__main__":
        torch.set_default_tensor_type(torch.cuda.DoubleTensor)
        warm = torch.rand(1)
        for batch in DataLoader(Rows(), num_workers=1, multiprocessing_context="fork", timeout=20):
            assert all(part.is_cuda and part.dtype is torch.float64 for part in batch), batch
        print("RESULT ok")
"""


def test_the_legacy_constructor_with_a_default_type_of_the_gpu(reroute: Callable[..., Ran]) -> None:
    assert reroute(LEGACY).ok().out == "RESULT ok\n"


PINS = """
    import torch
    from torch.utils.data import DataLoader

    class Batch:
        def __init__(self, items):
            self.x = torch.stack([torch.full((2,), float(i)) for i in items]).cuda()
            self.y, self.pinned = torch.tensor(items), 0
            self.row = self.x[1]
        def pin_memory(self, *args):
            self.x, self.y = self.x.pin_memory(), self.y.pin_memory()
            self.pinned += 1
            return self

    def collate(items): return [Batch(items), {"b": Batch(items)}, torch.ones(1).cuda()]

    if __name__ == "__main__":
        warm = torch.zeros(1, device="cuda")
        loader = DataLoader(range(4), batch_size=2, num_workers=1, collate_fn=collate, pin_memory=True, multiprocessing_context="fork", timeout=20)
        for first, second, third in loader:
            for batch in (first, second["b"]):
                assert batch.x.is_cuda and batch.y.is_pinned() and batch.pinned == 1, vars(batch)
                assert batch.x[:, 0].tolist() == batch.y.tolist() and batch.row.is_cuda and batch.row.tolist() == batch.x[1].tolist()
            assert third.is_cuda
        print("RESULT ok")
"""


def test_a_batch_that_pins_itself(reroute: Callable[..., Ran]) -> None:
    assert reroute(PINS).ok().out == "RESULT ok\n"
