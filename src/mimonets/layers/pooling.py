"""Average feature maps down to a few positions, in operations that every engine runs fast."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GridPool2d(nn.AdaptiveAvgPool2d):
    """PyTorch's adaptive average pooling, as an ordinary pooling where the windows are alike.

    Exported, the adaptive one becomes a gather and a mean over six axes unless the sizes divide,
    which takes OpenVINO more time than all convolutions of a small network. Windows are alike where
    the sizes divide, and always for two positions per side; a single position is repeated.

    >>> import torch
    >>> x = torch.randn(2, 3, 5, 5)
    >>> torch.allclose(GridPool2d(2)(x), nn.AdaptiveAvgPool2d(2)(x), atol=1e-6)
    True
    """

    def __init__(self, positions: int) -> None:
        super().__init__(positions)
        self.positions = positions

    def forward(self, x: Tensor) -> Tensor:
        """Average (b, c, h, w) to (b, c, positions, positions)."""
        if self.positions == 1:
            return super().forward(x)
        if x.shape[-2:] == (1, 1):
            if torch.compiler.is_exporting():  # ONNX Runtime takes three times as long to expand
                copies = torch.cat([x.flatten(2)] * self.positions**2, dim=2)
                return copies.unflatten(2, (self.positions, self.positions))
            return x.expand(-1, -1, self.positions, self.positions)
        height, width = (_window(size, self.positions) for size in x.shape[-2:])
        if height is None or width is None:
            return super().forward(x)
        return F.avg_pool2d(x, (height[0], width[0]), (height[1], width[1]))


def _window(size: int, positions: int) -> tuple[int, int] | None:
    """Give length and stride of the windows, if they are all alike.

    >>> _window(6, 3), _window(7, 2), _window(8, 3)
    ((2, 2), (4, 3), None)
    """
    starts = [i * size // positions for i in range(positions)]
    lengths = {-(-(i + 1) * size // positions) - start for i, start in enumerate(starts)}
    strides = {after - before for before, after in pairwise(starts)}
    if len(lengths) > 1 or len(strides) > 1 or 0 in strides:
        return None
    return lengths.pop(), strides.pop()
