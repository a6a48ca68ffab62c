"""Does it pay to run several series per pass? A 1-D network that tells waves apart."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import mimonets as mn


def make(maps: int = 32) -> nn.Sequential:
    """Make a convolutional network from series (b, 1, t) to logits of three waves."""
    layers = [nn.Conv1d(1, maps, 7, stride=2, padding=3), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv1d(maps, maps, 5, padding=2), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(maps, 3))


def waves(count: int, seed: int, length: int = 128) -> tuple[Tensor, Tensor]:
    """Generate sine, square and sawtooth waves of any frequency and phase, with noise."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=draw)
    cycles, phases = torch.rand(2, count, 1, generator=draw)
    time = torch.arange(length) / length * (3 + 7 * cycles) + phases
    sine = torch.sin(2 * torch.pi * time)
    kinds = torch.stack([sine, sine.sign(), 2 * (time % 1) - 1])
    noise = torch.randn(count, length, generator=draw)
    return (kinds[labels, torch.arange(count)] + 0.7 * noise).unsqueeze(1), labels


def main(out: str = "runs/compare-series", count: int = 4096, **budget: float) -> dict:
    """Compare ways to run the network at the cost of a narrow one."""
    sets = TensorDataset(*waves(count, 0)), TensorDataset(*waves(count // 4, 1))
    loaders = DataLoader(sets[0], 64, shuffle=True, drop_last=True), DataLoader(sets[1], 128)
    narrow = {"20 maps": lambda: make(20)}
    settings = {"out": out, "steps": 300, **budget}
    return mn.compare(make, loaders, macs=0.4e6, siblings=narrow, tell=print, **settings)


if __name__ == "__main__":
    print(main(*sys.argv[1:])["advice"])
