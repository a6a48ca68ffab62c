"""The residual networks for CIFAR of He et al., "Deep residual learning", 2015, section 4.2.

Post-activation, 16, 32 and 64 maps, 6n + 2 layers. Shortcuts have no weights: where a stage begins
they take every second pixel, and maps of zeros are added half before and half after.
"""

from pathlib import Path

import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, maps_in: int, maps: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(maps_in, maps, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(maps)
        self.conv2 = nn.Conv2d(maps, maps, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(maps)
        self.stride, self.zeros = stride, (maps - maps_in) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Transform (b, d, h, w)."""
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        x = x[:, :, :: self.stride, :: self.stride]
        return F.relu(out + F.pad(x, (0, 0, 0, 0, self.zeros, self.zeros)))


class ResNet(nn.Module):
    """Images (b, 3, h, w) to logits (b, 10)."""

    def __init__(self, depth: int = 56) -> None:
        super().__init__()
        if depth % 6 != 2:
            raise ValueError(f"depth={depth} is not 6n + 2, such as 20 or 56.")
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        blocks = (depth - 2) // 6
        self.layer1 = self._stage(16, 16, 1, blocks)
        self.layer2 = self._stage(16, 32, 2, blocks)
        self.layer3 = self._stage(32, 64, 2, blocks)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.linear = nn.Linear(64, 10)

    @staticmethod
    def _stage(maps_in: int, maps: int, stride: int, blocks: int) -> nn.Sequential:
        more = (Block(maps, maps, 1) for _ in range(blocks - 1))
        return nn.Sequential(Block(maps_in, maps, stride), *more)

    def forward(self, x: Tensor) -> Tensor:
        """Classify images."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(self.pool(x))


def pretrained(weights: Path, depth: int) -> ResNet:
    """Build a network and load its weights."""
    network = ResNet(depth)
    network.load_state_dict(load_file(weights / f"resnet{depth}.safetensors"), strict=False)
    return network.eval()
