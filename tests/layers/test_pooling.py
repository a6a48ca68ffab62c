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


def test_exported_it_repeats_a_single_position_without_expanding():
    pool, x = GridPool2d(3), torch.randn(2, 3, 1, 1)
    program = torch.export.export(pool, (x,))
    torch.testing.assert_close(program.module()(x), pool(x))
    assert "expand" not in program.graph_module.code
