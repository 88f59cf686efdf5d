"""The collate functions for ragged batches."""

from __future__ import annotations

import warnings

import pytest
import torch

from cudaguard import collate

SAMPLES = [torch.arange(6.0).view(3, 2), torch.arange(2.0).view(1, 2), torch.arange(8.0).view(4, 2)]


@pytest.mark.parametrize("layout", [None, torch.jagged, torch.strided])
def test_nested_keeps_every_sample(layout: torch.layout | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = collate.nested(SAMPLES) if layout is None else collate.nested(SAMPLES, layout=layout)
    assert made.is_nested and made.layout is (layout or torch.jagged)
    for got, want in zip(made.unbind(), SAMPLES, strict=True):
        assert torch.equal(got, want)


def test_padding_and_its_mask() -> None:
    padded, mask = collate.pad_and_mask(SAMPLES, value=-1.0)
    assert padded.shape == (3, 4, 2) and mask.shape == (3, 4) and mask.dtype is torch.bool
    assert mask.sum(1).tolist() == [3, 1, 4]
    for row, (sample, real) in enumerate(zip(SAMPLES, mask, strict=True)):
        assert torch.equal(padded[row][real], sample)
    assert (padded[~mask] == -1).all()


def test_lists_of_numbers_are_samples_too() -> None:
    padded, mask = collate.pad_and_mask([[1, 2, 3], [4]])
    assert padded.tolist() == [[1, 2, 3], [4, 0, 0]] and padded.dtype is torch.int64
    assert mask.tolist() == [[True, True, True], [True, False, False]]


@pytest.mark.parametrize("function", [collate.nested, collate.pad_and_mask])
def test_an_empty_batch_is_refused(function: object) -> None:
    with pytest.raises(ValueError, match="empty"):
        function([])  # type: ignore[operator]


def test_samples_without_a_length_are_refused() -> None:
    with pytest.raises(ValueError, match="length"):
        collate.pad_and_mask([torch.tensor(1.0), torch.tensor(2.0)])
