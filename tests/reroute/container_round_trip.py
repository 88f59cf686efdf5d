"""Containers and tensors of many kinds through a rerouted loader; see test_reroute_containers.py. Prints one line for each that arrives."""

from __future__ import annotations

import collections
import dataclasses
import sys
import types
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Dataset


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    label: int


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class Batch(collections.UserDict):
    """As transformers' BatchEncoding: a mapping with a `to`."""

    def to(self, device):
        return Batch({k: v.to(device) for k, v in self.items()})


class Marked(torch.Tensor):
    pass


class Graph:
    """As PyG's Data: attributes in a store of its own."""

    def __init__(self, **kw):
        self.__dict__["_store"] = dict(kw)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__["_store"][name]


def tensor(i):
    return torch.arange(6.0, device="cuda").view(2, 3) + i


def shared(i):
    base = torch.arange(12.0, device="cuda")
    return base, base[3:9], base.view(3, 4).t()


def tagged(i):
    x = tensor(i)
    x.note = "kept"
    return x


def make_marked(i):
    made = tensor(i).as_subclass(Marked)
    made.note = ["also", "kept"]
    return made


def quantised(i):
    return torch.quantize_per_tensor(torch.arange(4.0), 0.5, 3, torch.quint8)


def graph(value):
    return {"x": value.x, "edge": value.edge}


def check_shared(got, want):
    base, part, turned = got
    part[0] = 100.0
    assert base[3].item() == 100.0 and turned[3, 0].item() == 100.0  # one storage
    assert turned.stride() == want[2].stride()


def check_same_object(got, want):
    assert got[0] is got[1]["again"]


CASES = {
    "tensor": (tensor, None),
    "list": (lambda i: [tensor(i), [tensor(i), "text", 3, None]], None),
    "namedtuple": (lambda i: Pair(tensor(i), (1, tensor(i))), None),
    "dict": (lambda i: {"a": tensor(i), "cpu": torch.ones(2), ("k", 1): {"b": tensor(i)}}, None),
    "ordered": (lambda i: collections.OrderedDict(b=tensor(i), a=1), None),
    "deque": (lambda i: collections.deque([tensor(i), 1], maxlen=4), None),
    "defaultdict": (lambda i: collections.defaultdict(list, a=[tensor(i)]), None),
    "dataclass": (lambda i: Frozen(tensor(i), 7), None),
    "slots": (lambda i: Slotted(tensor(i)), None),
    "namespace": (lambda i: types.SimpleNamespace(x=tensor(i), y=2), None),
    "userdict": (lambda i: Batch(x=tensor(i)), None),
    "graph": (lambda i: Graph(x=tensor(i), edge=torch.zeros(2, 2, dtype=torch.long, device="cuda")), None),
    "packed": (lambda i: pack_sequence([torch.arange(3.0, device="cuda"), torch.arange(2.0, device="cuda")]), None),
    "shared storage": (shared, check_shared),
    "same object": (lambda i: (lambda t: [t, {"again": t}])(tensor(i)), check_same_object),
    "requires grad": (lambda i: tensor(i).requires_grad_(), None),
    "parameter": (lambda i: torch.nn.Parameter(tensor(i)), None),
    "module": (lambda i: torch.nn.Linear(2, 2).cuda(), None),
    "subclass": (make_marked, None),
    "attributes": (tagged, None),
    "conjugate": (lambda i: torch.tensor([1 + 2j, 3 - 1j], device="cuda").conj(), None),
    "negative": (lambda i: torch.tensor([1 + 2j, 3 - 1j], device="cuda").conj().imag, None),
    "quantised": (quantised, None),
    "coo": (lambda i: torch.eye(3, device="cuda").to_sparse(), None),
    "csr": (lambda i: torch.eye(3, device="cuda").to_sparse_csr(), None),
    "csc": (lambda i: torch.eye(3, device="cuda").to_sparse_csc(), None),
    "bsr": (lambda i: torch.eye(4, device="cuda").to_sparse_bsr((2, 2)), None),
    "empty": (lambda i: torch.empty(0, 3, device="cuda"), None),
    "scalar": (lambda i: torch.tensor(2.5, device="cuda"), None),
    "expanded": (lambda i: torch.tensor([1.0], device="cuda").expand(5), None),
    "bool": (lambda i: torch.tensor([True, False], device="cuda"), None),
    "bfloat16": (lambda i: torch.ones(3, dtype=torch.bfloat16, device="cuda"), None),
    "odd bytes": (lambda i: torch.arange(7, dtype=torch.uint8, device="cuda")[1:6], None),
}


class Samples(Dataset):
    def __init__(self, name):
        self.name = name

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return CASES[self.name][0](i)


def first(items):
    return items[0]


def same(got, want):
    """Recursively: type, structure, values, device, dtype, flags, attributes."""
    assert type(got).__name__ == type(want).__name__, (type(got), type(want))
    if isinstance(want, torch.Tensor):
        return same_tensor(got, want)
    if isinstance(want, torch.nn.Module):
        assert all(p.device.type == "cuda" for p in got.parameters()) and len(list(got.parameters())) == 2
        return None
    if isinstance(want, (dict, collections.UserDict)):
        assert list(got) == list(want)
        return [same(got[key], want[key]) for key in want] and None
    if isinstance(want, (list, tuple, collections.deque)):
        assert len(got) == len(want)
        return [same(a, b) for a, b in zip(got, want, strict=True)] and None
    if isinstance(want, Graph):
        return same(graph(got), graph(want))
    if isinstance(want, Slotted):
        return same(got.x, want.x)
    if hasattr(want, "__dict__"):
        return same(vars(got), vars(want))
    assert got == want
    return None


def same_tensor(got, want):
    assert (got.device, got.dtype, got.layout, got.shape) == (want.device, want.dtype, want.layout, want.shape), (got, want)
    assert got.requires_grad == want.requires_grad and got.is_leaf == want.is_leaf
    assert (got.is_conj(), got.is_neg()) == (want.is_conj(), want.is_neg())
    assert getattr(got, "note", None) == getattr(want, "note", None)
    if want.is_quantized:
        assert torch.equal(got.int_repr(), want.int_repr()) and got.q_scale() == want.q_scale()
    else:
        dense = [t.detach().to_dense() if t.layout is not torch.strided else t.detach() for t in (got, want)]
        assert torch.equal(dense[0].cpu(), dense[1].cpu()), (got, want)


def main(method, pin):
    warm = torch.zeros(1, device="cuda")
    failed = 0
    for name, (make, check) in CASES.items():
        try:
            options = {"num_workers": 1, "pin_memory": pin, "timeout": 60, "multiprocessing_context": method}
            loader = DataLoader(Samples(name), batch_size=1, collate_fn=first, **options)
            for i, got in enumerate(loader):
                want = make(i)
                same(got, want)
                if check:
                    check(got, want)
            print("ok", name, flush=True)
        except Exception as error:
            failed += 1
            print("FAILED", name, f"{type(error).__name__}: {error}"[:1500], flush=True)
    assert warm.is_cuda
    print("RESULT", "failed" if failed else "ok", len(CASES) - failed, "of", len(CASES))
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2] == "pin"))
