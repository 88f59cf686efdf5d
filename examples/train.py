#!/usr/bin/env python3
"""Train a small classifier: an ordinary script, which runs on a GPU, on the CPU and on a simulated device.

python examples/train.py                              on whatever is there
CUDAGUARD_SIMULATE=2 python examples/train.py         as if two GPUs were there
python examples/train.py --broken                     with the classic mistake: the dataset sends its samples to the GPU
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class Spirals(Dataset):
    """Points of two spirals, and which of the two each belongs to."""

    def __init__(self, count, broken):
        turn = torch.rand(count, generator=torch.Generator().manual_seed(0)) * 6
        self.labels = torch.arange(count) % 2
        angle = turn + torch.pi * self.labels
        self.points = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1) / 6
        self.broken = broken

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        point, label = self.points[index], self.labels[index]
        if self.broken:
            return point.to(device), label.to(device)  # in a worker: a forked process must not touch CUDA
        return point, label


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broken", action="store_true", help="send the samples to the GPU in __getitem__")
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(Spirals(512, args.broken), batch_size=64, shuffle=True, num_workers=2, persistent_workers=True)
    for epoch in range(args.epochs):
        total, right = 0.0, 0
        for points, labels in loader:
            points, labels = points.to(device), labels.to(device)
            scores = model(points)
            loss = nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
            right += (scores.argmax(dim=1) == labels).sum().item()
        print(f"epoch {epoch + 1}: loss {total / len(loader.dataset):.3f}, {right / len(loader.dataset):.0%} right, on {loss.device}")


if __name__ == "__main__":
    main()
