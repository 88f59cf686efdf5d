"""GPU data that workers inherit or are sent: found wherever it is held, copied once, refused where it is too much."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rerouted import Ran

from cudaguard._reroute import _held

HOLDERS = """
    import functools, sys
    from collections import deque
    from dataclasses import dataclass, field
    import torch
    from torch.utils.data import DataLoader, Dataset, Subset, ConcatDataset

    def gpu(n): return torch.full((3,), float(n), device="cuda")

    GLOBAL = None
    TABLE = {}

    class Slotted:
        __slots__ = ("x",)

    class Lazy:
        asked = 0
        @property
        def x(self):
            Lazy.asked += 1
            raise AssertionError("a property was called")

    class Data(Dataset):
        shared = None
        def __init__(self):
            self.plain = gpu(1)
            self.deep = {"a": [(gpu(2), {"b": deque([gpu(3)])})]}
            self.net = torch.nn.Linear(3, 2).cuda()
            self.net.register_buffer("buf", gpu(4))
            hidden = gpu(5)
            self.closure = lambda: hidden
            self.partial = functools.partial(torch.add, gpu(6), alpha=1)
            self.slotted = Slotted(); self.slotted.x = gpu(7)
            self.method = Keeper().give
            self.base = torch.arange(6.0, device="cuda")
            self.view = self.base[2:5]
            self.lazy = Lazy()
            self.coo = torch.eye(3, device="cuda").to_sparse()
            self.csr = torch.eye(3, device="cuda").to_sparse_csr()
            self.leaf = gpu(9).requires_grad_()
            self.generator = torch.Generator("cuda").manual_seed(3)
        def __len__(self): return 2
        def __getitem__(self, i):
            out = {
                "plain": self.plain, "deep": self.deep["a"][0][0], "deque": self.deep["a"][0][1]["b"][0],
                "net": self.net(gpu(0)).detach(), "buf": self.net.buf, "closure": self.closure(), "partial": self.partial(gpu(0)),
                "slot": self.slotted.x, "method": self.method(), "global": read_global(), "table": TABLE["t"], "class": self.shared,
                "view": self.view, "base": self.base, "coo": self.coo.to_dense(), "csr": self.csr.to_dense(), "leaf": self.leaf.detach() * 2,
            }
            assert self.plain.is_cuda and self.net.weight.device.type == "cuda" and self.leaf.requires_grad
            torch.rand(2, device="cuda", generator=self.generator)
            self.view[0] = 50.0
            assert self.base[2].item() == 50.0, "the view lost its base"
            self.view[0] = 2.0
            return out

    class Keeper:
        def __init__(self): self.kept = gpu(8)
        def give(self): return self.kept

    def read_global():
        def inner(): return GLOBAL
        return inner()

    def first(items): return items[0]

    def look(data):
        held = {k: v for k, v in vars(data).items() if isinstance(v, torch.Tensor)}
        return {k: (id(v), v.device, type(v), v.layout is torch.strided and v.data_ptr()) for k, v in held.items()}

    def clean(value): return {k: v.detach().cpu().clone() for k, v in value.items()}

    if __name__ == "__main__":
        GLOBAL = gpu(10); TABLE["t"] = gpu(11); Data.shared = gpu(12)
        data = Data()
        want = clean(data[0])
        before = look(data)
"""


def test_data_is_found_wherever_it_is_held(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        HOLDERS
        + """
        wrapped = ConcatDataset([Subset(data, [0, 1])])
        for epoch in range(2):
            got = list(DataLoader(wrapped, batch_size=1, num_workers=2, collate_fn=first, multiprocessing_context="fork", timeout=20))
            assert len(got) == 2
            for batch in got:
                assert batch.keys() == want.keys()
                for name, value in batch.items():
                    assert value.device == torch.device("cuda", 0), (name, value.device)
                    assert torch.allclose(value.cpu(), want[name], atol=1e-5), (name, value, want[name])
        assert look(data) == before, "the parent's own objects were changed"
        assert Lazy.asked == 0
        print("RESULT ok")
        """
    ).ok()
    assert "RESULT ok" in ran.out


LONG = """
    import torch
    from dataclasses import dataclass
    from torch.utils.data import DataLoader, Dataset

    @dataclass
    class Sample:
        name: str
        extra: object

    class Labels:
        table = None

    class Data(Dataset):
        def __init__(self):
            hidden = torch.full((2,), 5.0, device="cuda")
            self.plain = [(f"{i}.jpg", i, [1.0, {"box": i}]) for i in range(1000)]
            self.samples = [Sample(str(i), [torch.zeros(1)]) for i in range(1000)]
            self.samples[700].extra = [{"deep": torch.full((2,), 1.0, device="cuda")}]
            self.by_name = {str(i): [None] for i in range(1000)}
            self.by_name["999"][0] = torch.full((2,), 2.0, device="cuda")
            self.labels = [Labels() for i in range(1000)]
            self.lambdas = {i: (lambda: hidden) if i == 500 else None for i in range(1000)}
        def __len__(self): return 1
        def __getitem__(self, i):
            return self.samples[700].extra[0]["deep"], self.by_name["999"][0], self.labels[3].table, self.lambdas[500]()

    def first(items): return items[0]

    if __name__ == "__main__":
        Labels.table = torch.full((2,), 3.0, device="cuda")
        got = next(iter(DataLoader(Data(), num_workers=1, collate_fn=first, multiprocessing_context="fork", timeout=20)))
        assert all(tensor.is_cuda for tensor in got)
        print([tensor[0].item() for tensor in got])
"""


def test_data_is_found_in_long_containers(reroute: Callable[..., Ran]) -> None:
    """Those are swept first, by the garbage collector, which knows of no names: what is on the GPU must not get lost by that."""
    assert reroute(LONG).ok().out == "[1.0, 2.0, 3.0, 5.0]\n"


def test_a_sweep_looks_at_a_long_list_of_files_without_walking_it() -> None:
    class Box:
        pass

    samples = [(f"{i}.jpg", i, [1.0, {"box": Box()}]) for i in range(1000)]
    assert _held._swept(samples) == {Box}
    samples[500][2].append(len)  # leads nowhere
    assert _held._swept(samples) == {Box}
    samples[500][2].append(lambda: samples)  # leads to what it names
    assert _held._swept(samples) is None


STREAMS = """
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Data(Dataset):
        def __init__(self):
            self.side, self.done, self.current = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), [torch.cuda.current_stream()]
        def __len__(self): return 2
        def __getitem__(self, i):
            with torch.cuda.stream(self.side):
                made = torch.full((2,), float(i), device="cuda")
            self.done.record(self.side)
            self.current[0].wait_event(self.done)
            self.current[0].wait_stream(self.side)
            self.done.synchronize()
            self.side.synchronize()
            assert isinstance(self.side, torch.cuda.Stream) and self.side.query() and self.side.device.index == 0
            return made

    if __name__ == "__main__":
        warm = torch.zeros(1, device="cuda")
        data = Data()
        before = data.side, data.done, data.current[0]
        for batch in DataLoader(data, num_workers=2, multiprocessing_context="fork", timeout=30):
            print(batch.device, batch.tolist())
        assert before == (data.side, data.done, data.current[0])
        torch.cuda.synchronize()
"""
MADE = "cuda:0 [[0.0, 0.0]]\ncuda:0 [[1.0, 1.0]]\n"


def test_streams_and_events_that_a_dataset_holds(reroute: Callable[..., Ran]) -> None:
    assert reroute(STREAMS).ok().out == MADE


@pytest.mark.gpu
def test_streams_and_events_that_a_dataset_holds_on_a_gpu(reroute: Callable[..., Ran]) -> None:
    """There they are torch's own objects, which would ask the driver: in the worker others must have taken their place."""
    assert reroute(STREAMS, real=True).ok().out == MADE


BIG = """
    import sys
    import torch, cudaguard
    from torch.utils.data import DataLoader, Dataset

    class Big(Dataset):
        def __init__(self):
            self.cache = {"images": torch.arange(1000.0, device="cuda"), "small": torch.full((2,), 7.0, device="cuda")}
            self.half = self.cache["images"][:500]
        def __len__(self): return 2
        def __getitem__(self, i): return WORK

    if __name__ == "__main__":
        loader = DataLoader(Big(), batch_size=None, num_workers=1, multiprocessing_context=sys.argv[1], timeout=60)
        try:
            print([batch.flatten()[0].item() for batch in loader])
        except cudaguard.CudaForkError as error:
            print(error)
            assert error.finding["touch"]["code"] and error.finding["advice"][0]["id"] == "copy-dataset-to-cpu"
"""


@pytest.mark.parametrize("work", ['self.cache["images"][i]', "self.half.sum()", 'self.cache["images"]', 'self.cache["images"].cpu()'])
def test_too_much_data_is_refused_with_its_path_where_it_is_used(reroute: Callable[..., Ran], work: str) -> None:
    ran = reroute(BIG.replace("WORK", work), "fork", CUDAGUARD_COPY_LIMIT="1000").ok()
    assert ran.out.startswith("CUDA error: initialization error: the workers' dataset holds 4.0 kB of GPU data")
    assert "dataset.cache['images'] alone is 4.0 kB" in ran.out
    assert "CUDAGUARD_COPY_LIMIT is 1.0 kB" in ran.out
    assert ran.slugs() == ["inherited-tensor"]


@pytest.mark.parametrize("work", ["torch.zeros(1)", 'torch.tensor([float(self.cache["images"].is_cuda - 1 + len(self.half) - 500)])'])
def test_too_much_data_that_no_worker_uses_is_no_fault(reroute: Callable[..., Ran], work: str) -> None:
    """A dataset may reach the trainer, and that its model."""
    ran = reroute(BIG.replace("WORK", work), "fork", CUDAGUARD_COPY_LIMIT="1000").ok()
    assert (ran.out, ran.err, ran.report) == ("[0.0, 0.0]\n", "", [])


def test_what_is_small_is_copied_beside_what_is_too_much(reroute: Callable[..., Ran]) -> None:
    assert reroute(BIG.replace("WORK", 'self.cache["small"] + 1'), "fork", CUDAGUARD_COPY_LIMIT="1000").ok().out == "[8.0, 8.0]\n"


def test_spawned_workers_get_too_much_data_as_without_the_guard(reroute: Callable[..., Ran]) -> None:
    source = BIG.replace("WORK", '(self.cache["images"][5] + self.cache["small"][0]).cpu()').replace('self.cache["images"][:500]', "None")
    ran = reroute(source, "spawn", CUDAGUARD_COPY_LIMIT="1000").ok()
    assert (ran.out, ran.err) == ("[12.0, 12.0]\n", "")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_spawned_workers_get_cpu_copies_in_place_of_handles(reroute: Callable[..., Ran], method: str) -> None:
    ran = reroute(
        f"""
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Held(Dataset):
            def __init__(self):
                self.base = torch.arange(8.0, device="cuda:1")
                self.view = self.base[2:4]
                self.net = torch.nn.Linear(2, 2).cuda()
            def __len__(self): return 2
            def __getitem__(self, i):
                assert self.base.device == torch.device("cuda:1") and self.net.weight.is_cuda
                self.view[0] = 40.0
                assert self.base[2].item() == 40.0, "the view lost its base"
                return self.base, self.net.weight.detach()

        def first(items): return items[0]

        if __name__ == "__main__":
            data = Held()
            for base, weight in DataLoader(data, batch_size=1, num_workers=2, collate_fn=first, multiprocessing_context="{method}", timeout=60):
                assert base.device == torch.device("cuda:1") and weight.device == torch.device("cuda:0")
                assert base.tolist() == [0, 1, 40, 3, 4, 5, 6, 7] and torch.equal(weight, data.net.weight.detach())
            assert data.base.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
            print("RESULT ok")
        """
    ).ok()
    assert "RESULT ok" in ran.out
    assert "cuda-ipc" not in ran.slugs()


EPOCHS = """
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Scored(Dataset):
        def __init__(self, net): self.net = net
        def __len__(self): return 2
        @torch.no_grad()
        def __getitem__(self, i): return self.net(torch.ones(2, device="cuda"))[0]

    def change(net, epoch):
        with torch.no_grad():
            if epoch == 0: net.weight.data.mul_(2)
            elif epoch == 1: net.weight.data = net.weight.data * 2
            elif epoch == 2: net.weight.data.copy_(net.weight.data * 2)
            else: net.weight.mul_(2)

    if __name__ == "__main__":
        net = torch.nn.Linear(2, 1, bias=False).cuda()
        torch.nn.init.ones_(net.weight)
        loader = DataLoader(Scored(net), num_workers=1, multiprocessing_context="fork", timeout=20)
        older = iter(DataLoader(Scored(net), num_workers=1, multiprocessing_context="fork", prefetch_factor=1, timeout=20))
        seen = [next(older).item()]
        for epoch in range(5):
            seen += [next(iter(loader)).item()]
            change(net, epoch)
        print(seen, next(older).item())
"""


def test_workers_of_each_epoch_get_what_the_data_is_then(reroute: Callable[..., Ran]) -> None:
    """Writes through `.data` are counted by nobody; workers that were forked earlier keep what they were forked with."""
    assert reroute(EPOCHS).ok().out == "[2.0, 2.0, 4.0, 8.0, 16.0, 32.0] 2.0\n"


INFERENCE = """
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Features(Dataset):
        def __init__(self):
            net = torch.nn.Linear(2, 3).cuda()
            with torch.inference_mode():
                self.frozen = net(torch.arange(8.0, device="cuda").view(4, 2))
                self.part = self.frozen[1:, :2]
                self.turned = self.frozen.t()
        def __len__(self): return 3
        def __getitem__(self, i):
            assert self.frozen.is_inference() and self.frozen.is_cuda
            with torch.inference_mode():
                self.part.add_(1)
            return self.frozen[i + 1].clone(), self.part[i].clone(), self.turned[:, i + 1].clone()

    if __name__ == "__main__":
        data = Features()
        want = data.frozen[1:].clone()
        for i, (row, part, turned) in enumerate(DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=20)):
            want[:, :2] += 1
            assert row.is_cuda and torch.allclose(row, want[i]) and torch.allclose(part, want[i, :2]) and torch.allclose(turned, want[i])
        print("RESULT ok")
"""


def test_data_made_in_inference_mode(reroute: Callable[..., Ran]) -> None:
    """Views of it share memory in the worker as they do in the parent."""
    assert reroute(INFERENCE).ok().out == "RESULT ok\n"


ODD_HOLDERS = """
    import functools, os, sys, threading, types, weakref
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    def gpu(n): return torch.full((2,), float(n), device="cuda")

    os.makedirs("project")
    open("project/__init__.py", "w").close()
    open("project/settings.py", "w").close()
    open("project/more.py", "w").close()
    sys.path.insert(0, os.getcwd())
    import project.settings

    class Box:
        lock = threading.Lock()
        _instance = None
        def __init__(self, x): self.x = x
        def give(self, *more): return self.x
        @classmethod
        def only(cls): return cls._instance

    @functools.lru_cache(maxsize=None)
    def unbounded(n): return gpu(n)
    @functools.lru_cache(maxsize=4)
    def bounded(n): return gpu(n)
    TABLE = None

    def rows():
        table = [gpu(13)]
        yield None
        yield table[0]

    class Data(Dataset):
        cache, partial = Box(gpu(1)), functools.partial(Box.give, Box(gpu(2)))
        def __init__(self, trainer):
            self.proxy, self.ref = weakref.proxy(trainer), weakref.ref(trainer.model)
            self.weak = weakref.WeakValueDictionary({"a": trainer.other})
            self.array = np.array([None, None], dtype=object)
            self.array[1] = gpu(7)
            self.many = [np.array([None, Box(None)], dtype=object) for i in range(300)]
            self.many[200][1].x = gpu(8)
            self.refs = [weakref.ref(trainer.rare) for i in range(300)]
            self.names = types.MappingProxyType({"x": gpu(9)})
            self.get = {"x": gpu(10)}.get
            self.rows = rows()
            next(self.rows)
            self.lazy = iter([gpu(14)])
        @functools.cached_property
        def half(self): return TABLE * 0.5
        def __len__(self): return 1
        def __getitem__(self, i):
            from project import more
            return {
                1: self.cache.x, 2: type(self).partial(), 3: self.proxy.model.x, 4: self.ref().x, 5: self.weak["a"].x, 6: self.half,
                7: self.array[1], 8: self.many[200][1].x, 9: self.names["x"], 10: self.get("x"), 11: unbounded(11), 12: bounded(12),
                13: next(self.rows), 14: next(self.lazy), 15: project.settings.TABLE, 16: Box.only().x, 17: self.refs[7]().x, 18: more.TABLE,
            }

    class Trainer: pass

    def first(items): return items[0]

    if __name__ == "__main__":
        TABLE, project.settings.TABLE, Box._instance = gpu(12), gpu(15), Box(gpu(16))
        import project.more
        project.more.TABLE = gpu(18)
        unbounded(11), bounded(12)
        trainer = Trainer()
        trainer.model, trainer.other, trainer.rare = Box(gpu(3)), Box(gpu(5)), Box(gpu(17))
        data = Data(trainer)
        trainer.model.x = gpu(3)
        gone = Trainer()
        data.dead = weakref.proxy(gone), weakref.ref(gone)
        del gone
        for batch in DataLoader(data, num_workers=1, collate_fn=first, multiprocessing_context="fork", timeout=30):
            assert all(tensor.is_cuda for tensor in batch.values())
            wrong = {n: tensor.tolist() for n, tensor in batch.items() if n != 4 and tensor[0].item() != n}
            assert not wrong and batch[4][0].item() == 3, wrong
        print("RESULT ok")
"""


def test_data_is_found_in_classes_caches_weak_references_generators_and_modules(reroute: Callable[..., Ran]) -> None:
    assert reroute(ODD_HOLDERS).ok().out == "RESULT ok\n"
