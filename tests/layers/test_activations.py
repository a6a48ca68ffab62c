import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mimonets.layers import ShiftedReLU, make_activation


def test_shifted_relu_is_relu_of_the_shift_shifted_back():
    activation = ShiftedReLU(3)
    with torch.no_grad():
        activation.bend.copy_(torch.tensor([-1.0, 0.0, 0.5]))
    x = torch.randn(2, 3, 5, 4)
    bend = activation.bend.view(3, 1, 1)
    assert_close(activation(x), torch.relu(x - bend) + bend)


def test_parametric_relu_has_one_slope_per_map_starting_at_a_half():
    activation = make_activation("prelu", maps=7)
    x = torch.randn(2, 7, 3, 3)
    assert activation.weight.shape == (7,)
    assert_close(activation(x), x.clamp(min=0) + 0.5 * x.clamp(max=0))


@pytest.mark.parametrize(("name", "kind"), [("relu", nn.ReLU), ("srelu", ShiftedReLU)])
def test_activations_have_names(name, kind):
    assert isinstance(make_activation(name, maps=2), kind)


def test_an_unknown_activation_is_refused_with_the_choices():
    with pytest.raises(ValueError, match="'gelu' is not known.*relu.*prelu.*srelu"):
        make_activation("gelu", maps=2)
