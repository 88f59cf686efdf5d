"""NestedTensors through rerouted loaders: 8 of the 48 combinations for each start method and pin_memory. Run under CUDAGUARD=reroute.

    nested_round_trip.py fork pin 1        start method, pin or plain, repetitions, each with new workers
    nested_round_trip.py spawn pin 10 10   and passes over the data with the same (persistent) worker: 100 round trips, but 10 starts of it

strided or jagged, built in the worker or held by the dataset, on the CPU or on CUDA; of each: contiguous, not contiguous, with
lengths, two that share their offsets, with requires_grad. Prints `RESULT ok N` with the number of tensors compared.
"""

from __future__ import annotations

import itertools
import sys
import warnings

import torch
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore", message=".*nested tensors.*")
# Jagged tensors of torch 2.2 take no lengths, forget requires_grad when they are pickled, and which dimension is ragged when detached.
FULL = hasattr(torch.nested, "nested_tensor_from_jagged")
TURNS = torch.nested.nested_tensor([torch.ones(1, 1)], layout=torch.jagged).transpose(1, 2).detach()._ragged_idx == 2
KINDS = ("contiguous", "not contiguous", "lengths", "shared offsets", "requires grad")


def parts(seed):
    return [torch.arange(float(n * 2)).view(n, 2) + seed for n in (2, 4, 1)]


def make(layout, kind, device, seed):
    """One sample: a list of nested tensors."""
    made = torch.nested.nested_tensor(parts(seed), layout=layout, device=device)
    if kind == "not contiguous" and (TURNS or layout is torch.strided):
        return [made.transpose(1, 2)]
    if kind == "lengths" and FULL and layout is torch.jagged:
        values = torch.arange(14.0, device=device).view(7, 2) + seed
        offsets, lengths = torch.tensor([0, 2, 6, 7], device=device), torch.tensor([1, 3, 1], device=device)
        return [torch.nested.nested_tensor_from_jagged(values, offsets, lengths=lengths)]
    if kind == "shared offsets":
        return [made, made * 2]
    return [made.requires_grad_()] if kind == "requires grad" and (FULL or layout is torch.strided) else [made]


class Built(Dataset):
    """Samples that the worker makes: of each combination of a layout and a device, one of each kind."""

    PLANS = tuple(itertools.product((torch.strided, torch.jagged), ("cpu", "cuda"), KINDS))

    def __len__(self):
        return len(self.PLANS)

    def __getitem__(self, i):
        layout, device, kind = self.PLANS[i]
        return make(layout, kind, device, i)


class Held(Built):
    """Samples that are made before the worker is."""

    def __init__(self):
        self.samples = [Built.__getitem__(self, i) for i in range(len(self))]

    def __getitem__(self, i):
        return self.samples[i]


def same(got, want, device):
    assert got.is_nested and got.layout == want.layout, (got.layout, want.layout)
    assert got.device.type == device, (got.device, device)
    assert got.requires_grad == want.requires_grad, (got.requires_grad, want.requires_grad)
    assert got.dim() == want.dim()
    if got.layout is torch.jagged:
        assert torch.equal(got.offsets().cpu(), want.offsets().cpu())
        lengths = want.lengths()
        assert (got.lengths() is None) == (lengths is None)
        assert lengths is None or torch.equal(got.lengths().cpu(), lengths.cpu())
    for one, other in zip(got.detach().unbind(), want.detach().unbind(), strict=True):
        assert torch.equal(one.cpu(), other.cpu()), (one, other)


def first(items):
    return items[0]


def run(method, pin, passes, source):
    """Tensors that came as they were: one or two a sample. What did not is printed."""
    options = {"num_workers": 1, "pin_memory": pin, "timeout": 60, "multiprocessing_context": method, "persistent_workers": passes > 1}
    loader = DataLoader(source(), batch_size=1, collate_fn=first, **options)
    samples = ((plan, i, sample) for _ in range(passes) for i, (plan, sample) in enumerate(zip(Built.PLANS, loader, strict=True)))
    return sum(arrived(pin, i, sample, *plan) for plan, i, sample in samples)


def arrived(pin, i, sample, layout, device, kind):
    try:
        want = make(layout, kind, "cpu", i)
        for got, expected in zip(sample, want, strict=True):
            same(got, expected, device)
            assert not pin or device == "cuda" or (got._values if layout is torch.jagged else got.detach().values()).is_pinned()
        if kind == "shared offsets" and layout is torch.jagged:
            assert torch.equal((sample[0] + sample[1]).values().cpu(), (want[0] + want[1]).values())  # still of one ragged size
        return len(want)
    except Exception as error:
        print("FAILED", layout, device, kind, f"{type(error).__name__}: {error}"[-3000:], flush=True)
        return 0


def main(method, pin, times, passes=1):
    warm = torch.zeros(1, device="cuda")
    total = 0
    for source in (Built, Held) * times:
        try:
            total += run(method, pin, passes, source)
        except Exception as error:
            print("FAILED", method, "pin" if pin else "plain", source.__name__, f"{type(error).__name__}: {error}"[-3000:], flush=True)
    want = times * passes * 8 * (len(KINDS) + 1)
    print("RESULT ok" if total == want else "RESULT failed", total, "of", want)
    assert warm.device.type == "cuda"
    return total != want


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2] == "pin", *map(int, sys.argv[3:])))
