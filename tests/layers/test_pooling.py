import pytest
import torch
from torch import nn

from mimonets.layers import GridPool2d


@pytest.mark.parametrize("positions", [1, 2, 3, 4])
@pytest.mark.parametrize("height", [1, 2, 3, 5, 6, 7, 8])
def test_it_is_adaptive_pooling(positions, height):
    x = torch.randn(2, 3, height, 6)
    for maps in (x, x.mT, x[..., :1]):
        wanted = nn.AdaptiveAvgPool2d(positions)(maps)
        torch.testing.assert_close(GridPool2d(positions)(maps), wanted)
