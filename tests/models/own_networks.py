"""Small networks as users have them, for tests of superpose()."""

import torch
from torch import nn

import mimonets as mn


def plain_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 20, 3, stride=2),
        nn.BatchNorm2d(20),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(20, 7),
    )


def superposed_cnn(**settings):
    settings = {"num_streams": 3, "bind_after": "2", "unbind_before": "8", **settings}
    return mn.superpose(plain_cnn(), example=torch.randn(1, 1, 9, 9), **settings)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.second(self.first(x).relu())
        return self.head(x.mean(dim=(2, 3)))


class Twice(nn.Module):
    """Maps of two sizes go through the same block, one after the other."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.block = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.block(self.block(self.stem(x))).mean(dim=(2, 3)))
