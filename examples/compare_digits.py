"""Does it pay? A CNN on scikit-learn's digits: candidates trained alike, and advice."""

import sys

import torch
from own_network import CNN
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split

import mimonets as mn


def main(out: str = "runs/compare-digits", **budget: float) -> dict:
    """Compare the CNN with a narrow one, half resolution, keys and tiles, at twice the speed."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    data = TensorDataset(images, torch.tensor(digits.target))
    parts = random_split(data, [1437, 360], torch.Generator().manual_seed(0))
    loaders = DataLoader(parts[0], 64, shuffle=True, drop_last=True), DataLoader(parts[1], 120)
    narrow = {"36 maps": lambda: CNN(36)}
    found = mn.compare(CNN, loaders, out=out, speed=2, siblings=narrow, tell=print, **budget)
    print(found["advice"])
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
