"""A sample that hangs on a graph cannot be sent: PyTorch waits for ever.

needs: torch
tier: none
start: fork
maker: dataloader
error-mode: raise
reroute-mode: raise
advice: detach
slug: unsendable-output
rerouted: no
sim: yes
"""

import torch
from torch.utils.data import DataLoader, Dataset

weight = torch.ones(2, requires_grad=True)


def first(items):
    return items[0]


class Graph(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return {"x": weight * i}


if __name__ == "__main__":
    loader = DataLoader(Graph(), num_workers=1, collate_fn=first, multiprocessing_context="fork")
    for i, sample in enumerate(loader):  # @fork
        assert sample["x"].tolist() == [float(i)] * 2
    print("RESULT ok")
