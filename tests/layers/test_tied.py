import pytest
import torch
from torch.testing import assert_close

from mimonets.layers import Lanes, TiedConv2d, total_isometry_penalty
from mimonets.layers.isometric import isometry_penalty
from oracles import gradients


def tied_by_hand(layer, x):
    """Add up lane by lane: y_k = sum_j W_(k-j) * x_j."""
    lanes = x.unflatten(0, (-1, layer.lanes))  # g s i h w
    weights = [layer.own, *layer.cross]
    out = []
    for k in range(layer.lanes):
        out.append(
            sum(
                torch.nn.functional.conv2d(
                    lanes[:, j],
                    weights[(k - j) % layer.lanes],
                    stride=layer.stride,
                    padding=layer.padding,
                )
                for j in range(layer.lanes)
            )
        )
    return torch.stack(out, dim=1).flatten(0, 1)


@pytest.mark.parametrize(("lanes", "kernel", "stride"), [(1, 3, 1), (3, 3, 2), (4, 1, 2)])
def test_it_equals_the_double_loop_over_lanes(lanes, kernel, stride):
    layer = TiedConv2d(2, 5, kernel, lanes=lanes, stride=stride).double()
    x = torch.randn(2 * lanes, 2, 7, 6, dtype=torch.float64)
    assert_close(layer(x), tied_by_hand(layer, x))
    fast, slow = gradients(layer, [x]), gradients(lambda x: tied_by_hand(layer, x), [x])
    assert_close(fast, slow)


@pytest.mark.parametrize("turn", [1, 2, 3])
def test_rotating_the_lanes_rotates_the_output(turn):
    layer = TiedConv2d(3, 2, 3, lanes=4)
    x = torch.randn(2, 4, 3, 5, 5)
    turned = layer(x.roll(turn, dims=1).flatten(0, 1)).unflatten(0, (2, 4))
    expected = layer(x.flatten(0, 1)).unflatten(0, (2, 4)).roll(turn, dims=1)
    assert_close(turned, expected, rtol=1e-5, atol=1e-5)


def test_a_dirac_start_is_an_identity():
    layer = TiedConv2d(3, 3, 3, lanes=4)
    layer.reset_parameters(dirac=True)
    x = torch.randn(4, 3, 5, 5)
    assert_close(layer(x), x)


def test_the_isometry_penalty_is_that_of_the_dense_convolution():
    layer = TiedConv2d(3, 2, 3, lanes=4, stride=2)
    assert layer.weight.shape == (8, 12, 3, 3)
    assert_close(total_isometry_penalty(layer), isometry_penalty(layer.weight, 2))


@pytest.mark.parametrize("active", [1, 2, 3, 4])
def test_lanes_carry_inputs_as_streams_do_and_come_apart_again(active):
    x = torch.randn(3, active, 2, 4, 4)
    lanes = Lanes(4)
    cut = lanes.cut(lanes(x))
    assert cut.shape == (3, 4, 2, 4, 4)
    for stream in range(4):
        assert_close(cut[:, stream], x[:, stream % active], rtol=0, atol=0)
