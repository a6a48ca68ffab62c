"""Does it pay on scikit-learn's digits? For a CNN that tells them apart, and one that cleans them.

python examples/compare_digits.py [classify|denoise]
"""

import sys

import torch
from own_network import CNN
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import mimonets as mn


def denoiser(maps: int = 32) -> nn.Sequential:
    """Make a convolutional network from images (b, 1, 8, 8) to images of the same size."""
    inner = [nn.Conv2d(maps, maps, 3, padding=1) for _ in range(3)]
    layers = [nn.Conv2d(1, maps, 3, padding=1), nn.ReLU()]
    layers += [layer for one in inner for layer in (one, nn.ReLU())]
    return nn.Sequential(*layers, nn.Conv2d(maps, 1, 3, padding=1))


def main(task: str = "classify", out: str = "", **budget) -> dict:
    """Compare a network with half resolution, keys, tiles and a narrow one, at the cost of that."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    draw = torch.Generator().manual_seed(0)
    if task == "classify":
        make, narrow, macs = CNN, {"36 maps": lambda: CNN(36)}, 1.2e6
        data = TensorDataset(images, torch.tensor(digits.target))
    else:  # the answers are images, judged by their squared error
        make, narrow, macs = denoiser, {"20 maps": lambda: denoiser(20)}, 0.75e6
        noise = torch.randn(images.shape, generator=draw)
        data = TensorDataset(images + noise / 2, images)
    parts = random_split(data, [1437, 360], draw)
    loaders = DataLoader(parts[0], 64, shuffle=True, drop_last=True), DataLoader(parts[1], 120)
    settings = {"out": out or f"runs/compare-digits-{task}", "steps": 300, **budget}
    return mn.compare(make, loaders, macs=macs, siblings=narrow, tell=print, **settings)


if __name__ == "__main__":
    print(main(*sys.argv[1:])["advice"])
