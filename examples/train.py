"""Train a small network for a few steps, on the GPU where there is one.

`--broken` makes the classic mistake: the dataset sends each sample to the GPU, inside a worker that was forked.
"""

import argparse

import torch
from torch.utils.data import DataLoader, Dataset


class Parabola(Dataset):
    """Points (x, x*x); with a device, already on it."""

    def __init__(self, device=None):
        self.device = device

    def __len__(self):
        return 256

    def __getitem__(self, i):
        x = torch.tensor([i / 256])
        if self.device:
            x = x.to(self.device)
        return x, x * x


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broken", action="store_true", help="send samples to the GPU in the worker")
    broken = parser.parse_args().broken

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(Parabola(device if broken else None), batch_size=32, shuffle=True, num_workers=2)

    for epoch in range(3):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f} on {loss.device}")


if __name__ == "__main__":
    main()
