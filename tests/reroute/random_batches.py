"""Random batches through a rerouted loader, compared with the same code without workers, on the CPU and on the devices.

See test_reroute_property.py.
    random_batches.py COUNT SEED      prints `RESULT ok COUNT`

A batch is a tree of containers; its leaves are dense tensors of random dtype, shape and strides, views of one another, the same object
twice, sparse and nested tensors, on the CPU or one of two devices. It is built from one number, so both sides build the same.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import sys
import warnings
from typing import Any, NamedTuple

import hypothesis
import torch
from hypothesis import strategies
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.pin_memory import pin_memory

warnings.filterwarnings("ignore")
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64]


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Record:
    a: Any
    b: Any


class Maker:
    """Builds one batch. `real` says whether devices are meant: on the plain CPU every device is the CPU."""

    def __init__(self, seed, real):
        self.random, self.real, self.made = random.Random(seed), real, []

    def tree(self, depth=0):
        kinds = ["leaf"] * (2 if depth else 0) + (["list", "tuple", "dict", "point", "record", "deque", "plain"] if depth < 3 else [])
        kind = self.random.choice(kinds or ["leaf"])
        parts = [self.tree(depth + 1) for _ in range(self.random.randint(1, 3))] if kind in ("list", "tuple", "dict", "deque") else []
        if kind in ("list", "tuple", "deque"):
            return {"list": list, "tuple": tuple, "deque": collections.deque}[kind](parts)
        if kind == "dict":
            return {f"k{i}": part for i, part in enumerate(parts)}
        if kind in ("point", "record"):
            return (Point if kind == "point" else Record)(self.tree(depth + 1), self.tree(depth + 1))
        return self.random.choice([None, 3, "text", 2.5, b"bytes"]) if kind == "plain" else self.leaf()

    def leaf(self):
        if self.made and self.random.random() < 0.3:
            old = self.random.choice(self.made)
            return old if self.random.random() < 0.5 else old[: max(1, len(old) // 2)]
        kind = self.random.choice(["dense"] * 6 + ["turned", "sparse", "jagged", "strided", "grad"])
        made = getattr(self, kind)(self.device())
        if kind == "dense":
            self.made.append(made)
        return made

    def device(self):
        chosen = self.random.choice(["cpu", "cuda:0", f"cuda:{torch.cuda.device_count() - 1}"])
        return chosen if self.real else "cpu"

    def dense(self, device):
        shape = [self.random.randint(1, 4) for _ in range(self.random.randint(1, 3))]
        dtype = self.random.choice(DTYPES)
        return torch.arange(float(torch.Size(shape).numel())).view(shape).to(dtype).to(device)

    def turned(self, device):
        return torch.arange(12.0, device=device).view(3, 4).t()[:, ::2]

    def sparse(self, device):
        return torch.eye(self.random.randint(2, 4)).to_sparse().to(device)

    def jagged(self, device):
        return torch.nested.nested_tensor([torch.ones(2, 2), torch.zeros(3, 2)], layout=torch.jagged, device=device)

    def strided(self, device):
        return torch.nested.nested_tensor([torch.ones(2, 2), torch.zeros(3, 1)], layout=torch.strided, device=device)

    def grad(self, device):
        return torch.ones(3, device=device).requires_grad_()


class Batches(Dataset):
    def __init__(self, seeds):
        self.seeds = seeds

    def __len__(self):
        return len(self.seeds)

    def __getitem__(self, i):
        return Maker(self.seeds[i], real=True).tree()


def first(items):
    return items[0]


def leaves(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from (leaf for part in value.values() for leaf in leaves(part))
    elif isinstance(value, (list, tuple, collections.deque)):
        yield from (leaf for part in value for leaf in leaves(part))
    elif isinstance(value, Record):
        yield from leaves([value.a, value.b])


PINNED_TUPLE = type(pin_memory((1,))).__name__  # a list up to torch 2.7, unless the batch was moved as a whole: the two are not told apart there


def shape_of(value):
    """The tree without its tensors."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, dict):
        return {key: shape_of(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, collections.deque)):
        return PINNED_TUPLE if type(value) is tuple else type(value).__name__, [shape_of(part) for part in value]
    return ("Record", shape_of([value.a, value.b])) if isinstance(value, Record) else value


def same(got, want, device):
    assert got.device == torch.device(device), (got.device, device)
    assert (got.dtype, got.layout, got.requires_grad) == (want.dtype, want.layout, want.requires_grad)
    if got.is_nested:
        return [same(a.detach(), b.detach(), device) for a, b in zip(got.unbind(), want.unbind(), strict=True)]
    plain = [t.detach().to_dense() if t.layout is not torch.strided else t.detach() for t in (got, want)]
    assert torch.equal(plain[0].cpu(), plain[1].cpu()), (got, want)
    return None


def sharing(tree):
    """Which leaves are the same object, and which share memory, by their numbers."""
    found = [t for t in leaves(tree) if t.layout is torch.strided and not t.is_nested]
    keys = [(id(t), t.untyped_storage().data_ptr()) for t in found]
    return [([a[0] == b[0] for b in keys], [a[1] == b[1] for b in keys]) for a in keys]


def check(seeds, pin):
    """What arrives is what plain CPU code makes, and what code without workers gives: on the same devices, with the same sharing."""
    loader = DataLoader(Batches(seeds), batch_size=1, collate_fn=first, num_workers=1, timeout=60, pin_memory=pin, multiprocessing_context="fork")
    for number, got in zip(seeds, loader, strict=True):
        here, plain = Maker(number, real=True).tree(), Maker(number, real=False).tree()
        assert shape_of(got) == shape_of(plain), number
        for a, b, c in zip(leaves(got), leaves(plain), leaves(here), strict=True):
            same(a, b, c.device)
            same(a, c, c.device)
        if any(leaf.is_cuda for leaf in leaves(here)):
            assert sharing(got) == sharing(here), (number, sharing(got), sharing(here))


def main(count, seed):
    warm = torch.zeros(1, device="cuda")
    run = hypothesis.given(strategies.lists(strategies.integers(0, 2**40), min_size=1, max_size=12), strategies.booleans())(check)
    hypothesis.seed(seed)(hypothesis.settings(max_examples=count, deadline=None, database=None)(run))()
    assert warm.is_cuda
    print("RESULT ok", count)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
