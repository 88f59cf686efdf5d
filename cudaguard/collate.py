"""Collate functions for samples of different lengths, for a DataLoader's `collate_fn`. torch is imported when they are called."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import torch


def nested(batch: Sequence[Any], *, layout: torch.layout | None = None) -> torch.Tensor:
    """One NestedTensor of samples of different lengths: `collate_fn=cudaguard.collate.nested`.

    Args:
        batch: B samples: tensors (or what `torch.as_tensor` takes) of shapes (L_i, *rest), of one dtype and device.
        layout: `torch.jagged` (the default; only the first dimension may differ) or `torch.strided` (any may differ).

    Returns a tensor of shape (B, L_i, *rest), on the device of the samples; jagged samples are copied, with their history.
    Raises ValueError for an empty batch, RuntimeError where torch cannot build the layout from these shapes.
    """
    import torch

    layout = torch.jagged if layout is None else layout
    return torch.nested.as_nested_tensor(_tensors(batch), layout=layout)


def pad_and_mask(batch: Sequence[Any], *, value: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples padded to the longest, and which entries are real.

    Args:
        batch: B samples: tensors (or what `torch.as_tensor` takes) of shapes (L_i, *rest), of one dtype and device.
        value: what the padding is filled with, in the samples' own dtype.

    Returns (padded, mask): padded of shape (B, L, *rest) with L the longest L_i; mask of shape (B, L), bool, True where a sample has data.
    Both on the device of the samples. Raises ValueError for an empty batch or for samples without a length, RuntimeError where `rest` differs.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    tensors = _tensors(batch)
    if any(tensor.dim() == 0 for tensor in tensors):
        raise ValueError("pad_and_mask() needs samples with a length: a tensor without dimensions has none")
    padded = pad_sequence(tensors, batch_first=True, padding_value=value)
    lengths = torch.tensor([len(tensor) for tensor in tensors], device=padded.device)
    return padded, torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]


def _tensors(batch: Sequence[Any]) -> list[torch.Tensor]:
    import torch

    if len(batch) == 0:
        raise ValueError("an empty batch has no shape")
    return [torch.as_tensor(sample) for sample in batch]
