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


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_parametric_relu_equals_that_of_pytorch_with_its_gradients(dtype, memory_format):
    ours, theirs = make_activation("prelu", maps=5).to(dtype), nn.PReLU(5, init=0.5).to(dtype)
    with torch.no_grad():
        for one in (ours, theirs):
            one.weight.copy_(torch.tensor([-0.7, 0.0, 0.25, 1.0, 3.0]))
    x = torch.randn(3, 5, 7, 3).to(dtype)
    x[0, :, 0, 0], x[1, :, 0, 0] = 0.0, 1e30
    x = x.contiguous(memory_format=memory_format).requires_grad_()
    above = torch.randn(3, 5, 7, 3).to(dtype)  # not laid out like x
    found = torch.autograd.grad(ours(x), [x, ours.weight], above)
    wanted = torch.autograd.grad(theirs(x), [x, theirs.weight], above)
    assert torch.equal(ours(x), theirs(x))
    assert torch.equal(found[0], wanted[0])
    assert_close(found[1], wanted[1])
    assert found[0].stride() == x.stride()


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 3, 2, 2, 2)])
def test_parametric_relu_takes_the_maps_second_whatever_follows(shape):
    activation = make_activation("prelu", maps=3).double()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(activation, x)
    assert torch.equal(activation(x), nn.functional.prelu(x, activation.weight))


@pytest.mark.parametrize(("name", "kind"), [("relu", nn.ReLU), ("srelu", ShiftedReLU)])
def test_activations_have_names(name, kind):
    assert isinstance(make_activation(name, maps=2), kind)


def test_an_unknown_activation_is_refused_with_the_choices():
    with pytest.raises(ValueError, match="'gelu' is not known.*relu.*prelu.*srelu"):
        make_activation("gelu", maps=2)
