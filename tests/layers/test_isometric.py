import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from mimonets.layers import (
    SkipScale,
    init_convolution,
    isometric,
    isometry_penalty,
    total_isometry_penalty,
)
from oracles import gradients


def penalty_by_convolution(weight, stride):
    """Convolve the kernel with itself, zero-padded, and compare with a delta. Appendix B.2."""
    if weight.shape[0] > weight.shape[1]:
        weight = weight.transpose(0, 1)
    steps = (stride, stride) if isinstance(stride, int) else stride
    reach = [(size - 1) // step for size, step in zip(weight.shape[2:], steps, strict=True)]
    padding = [shifts * step for shifts, step in zip(reach, steps, strict=True)]
    gram = F.conv2d(weight, weight, padding=padding, stride=steps)
    delta = torch.zeros_like(gram)
    delta[:, :, reach[0], reach[1]] = torch.eye(len(weight), dtype=weight.dtype)
    return (gram - delta).square().sum() / 2


SHAPES = [(3, 5, 3, 3), (5, 3, 3, 3), (4, 4, 1, 1), (7, 2, 1, 1), (2, 3, 5, 5), (2, 3, 4, 4)]
OBLONG = [(3, 5, 1, 7), (5, 3, 7, 1), (2, 3, 3, 5), (2, 3, 4, 2)]


@pytest.fixture(params=["by taps", "by shifts"])
def form(request, monkeypatch):
    """Let a CPU take one of the two forms, whatever the size of the kernel."""
    monkeypatch.setattr(isometric, "FEW_MAPS", 10_000 if request.param == "by taps" else 0)


def check_against_the_convolution(weight, stride):
    found, wanted = (f(weight, stride) for f in (isometry_penalty, penalty_by_convolution))
    assert_close(found, wanted, rtol=1e-13, atol=0)
    fast = gradients(lambda w: isometry_penalty(w, stride), [weight])
    slow = gradients(lambda w: penalty_by_convolution(w, stride), [weight])
    assert_close(fast, slow, rtol=0, atol=1e-13 * slow[0].abs().max().item())


@pytest.mark.parametrize("stride", [1, 2, (1, 2), (3, 1)])
@pytest.mark.parametrize("shape", SHAPES + OBLONG)
def test_the_penalty_matches_the_convolution_of_the_paper_gradients_too(form, shape, stride):
    check_against_the_convolution(torch.randn(shape, dtype=torch.float64), stride)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_penalty_of_tiny_and_huge_weights_is_as_exact(form, scale):
    check_against_the_convolution(scale * torch.randn(3, 5, 3, 3, dtype=torch.float64), 1)


def test_a_gradient_of_its_gradient_is_refused(form):
    weight = torch.randn(2, 3, 3, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(isometry_penalty(weight), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient.sum().backward()


def test_under_autocast_the_products_are_rounded_and_the_result_is_not(form):
    weight = (torch.randn(6, 6, 3, 3) / 54**0.5).requires_grad_()
    wanted = isometry_penalty(weight)
    (exact,) = torch.autograd.grad(wanted, weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = isometry_penalty(weight)
    (rounded,) = torch.autograd.grad(found, weight)
    assert found.dtype == rounded.dtype == torch.float32
    assert 0 < (found - wanted).abs() < 0.01 * wanted
    assert 0 < (rounded - exact).norm() < 0.01 * exact.norm()


@pytest.mark.parametrize("maps", [3, 60])
def test_a_gradient_keeps_the_layout_of_its_weight(maps):
    layer = nn.Conv2d(maps, maps, 3).to(memory_format=torch.channels_last)
    isometry_penalty(layer.weight).backward()
    assert layer.weight.grad.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("maps_in", "maps_out"), [(4, 4), (6, 4), (4, 6)])
def test_an_identity_convolution_costs_nothing(maps_in, maps_out, stride):
    layer = nn.Conv2d(maps_in, maps_out, 3, stride=stride, bias=False)
    init_convolution(layer, dirac=True)
    assert isometry_penalty(layer.weight, stride) == 0


@pytest.mark.parametrize("dirac", [False, True])
def test_a_convolution_in_lanes_is_equal_convolutions_side_by_side(dirac):
    layer = nn.Conv2d(6, 12, 3, bias=False)
    init_convolution(layer, dirac=dirac, lanes=3)
    own = layer.weight[:4, :2]
    alone = nn.Conv2d(6, 12, 3, groups=3, bias=False)
    with torch.no_grad():
        alone.weight.copy_(own.repeat(3, 1, 1, 1))
    x = torch.randn(2, 6, 5, 4)
    assert_close(layer(x), alone(x))
    if not dirac:  # by what leaves one lane
        assert 0.7 < own.std() / (2 / (4 * 9)) ** 0.5 < 1.4


def test_no_penalty_means_lengths_are_preserved():
    # A rotation of the maps, each shifted by one tap in a direction of its own.
    rotation = torch.linalg.qr(torch.randn(6, 6)).Q
    weight = torch.zeros(6, 6, 3, 3)
    for i, (down, right) in enumerate([(0, 0), (0, 1), (2, 1), (1, 1), (2, 2), (1, 0)]):
        weight[:, i, down, right] = rotation[:, i]
    assert isometry_penalty(weight) < 1e-10
    # Circular padding, so that nothing is lost over the border.
    x = torch.randn(10, 6, 8, 8)
    y = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), weight)
    assert_close(y.flatten(1).norm(dim=1), x.flatten(1).norm(dim=1))
    assert isometry_penalty(1.1 * weight) > 0.1


def test_the_total_runs_over_all_convolutions_with_their_strides():
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2), nn.ReLU(), nn.Conv2d(3, 3, (1, 5), stride=(1, 3))
    )
    expected = penalty_by_convolution(net[0].weight, 2)
    expected = expected + penalty_by_convolution(net[2].weight, (1, 3))
    assert_close(total_isometry_penalty(net), expected)


def test_a_module_without_convolutions_has_no_penalty():
    assert total_isometry_penalty(nn.Linear(2, 3, dtype=torch.float64)).dtype == torch.float64
    assert total_isometry_penalty(nn.ReLU()) == 0


@pytest.mark.parametrize(
    ("settings", "what"),
    [({"groups": 4}, "groups=4"), ({"dilation": (1, 2)}, r"dilation=\(1, 2\)")],
)
def test_groups_and_dilation_are_refused_by_the_name_of_the_layer(settings, what):
    net = nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 3, **settings))
    with pytest.raises(ValueError, match=f"convolution '1' .*{what}.*knows neither"):
        total_isometry_penalty(net)


def test_skip_scale_starts_at_nothing_and_learns():
    scale = SkipScale()
    x = torch.randn(2, 3, 4, 4)
    assert (scale(x) == 0).all()
    scale(x).sum().backward()
    assert_close(scale.alpha.grad, x.sum())
