import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mimonets.attention import ReLUFeatures
from mimonets.experiments.bounds_simulation import (
    Draws,
    aligned_pair,
    simulate_relu_kernel,
    simulate_superposed_relu_kernel,
    unit_streams,
)
from mimonets.theory import (
    relu_kernel,
    relu_kernel_approximation,
    softmax_kernel,
    superposed_relu_kernel,
)
from mimonets.vsa import bipolar_keys

COSINES = st.floats(-1, 1)
GRID = [step / 1000 for step in range(-1000, 1001)]


@given(COSINES)
def test_the_closed_form_is_half_the_arc_cosine_kernel(rho):
    """Cho & Saul 2009, degree 1."""
    theta = math.acos(rho)
    expected = (math.sin(theta) + (math.pi - theta) * math.cos(theta)) / (2 * math.pi)
    assert relu_kernel(rho) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("rho", [-0.95, -0.5, 0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("dim", [2, 17])
def test_the_closed_form_is_within_monte_carlo_error(rho, dim):
    generator = torch.Generator().manual_seed(1)
    found = simulate_relu_kernel(Draws(20_000, generator), rho, dim)
    assert abs(found.mean - relu_kernel(rho)) < 4 * found.standard_error


@pytest.mark.parametrize("rho", [-0.7, 0.0, 0.6])
def test_it_is_what_the_features_of_mimoformer_compute(rho):
    x, y = (vector.float() for vector in aligned_pair(rho, 16))
    features = ReLUFeatures(16, 50_000, generator=torch.Generator().manual_seed(0), epsilon=0.0)
    found = float(features(3 * x) @ features(2 * y)) * math.sqrt(16)
    assert found == pytest.approx(6 * relu_kernel(rho), rel=0.05, abs=0.01)


def test_the_approximation_meets_the_kernel_in_three_points_and_is_near_elsewhere():
    for rho in (-1.0, 0.0, 1.0):
        assert relu_kernel_approximation(rho) == pytest.approx(relu_kernel(rho), abs=1e-12)
    errors = [relu_kernel_approximation(rho) - relu_kernel(rho) for rho in GRID]
    assert 0.0072 < max(errors) < 0.0073
    assert -0.0039 < min(errors) < -0.0038
    positive = [rho for rho in GRID if rho > 0]
    assert max(relu_kernel_approximation(rho) / relu_kernel(rho) for rho in positive) < 1.022


def test_near_minus_one_the_approximation_is_off_by_any_factor():
    """The kernel falls as the power 3/2 there, the approximation as 1.65."""
    ratios = [relu_kernel_approximation(rho) / relu_kernel(rho) for rho in (-0.9, -0.99, -0.9999)]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] < 0.3
    slope = math.log(relu_kernel(-0.9998) / relu_kernel(-0.9999)) / math.log(2)
    assert slope == pytest.approx(1.5, abs=0.01)


def test_all_curves_rise():
    for curve in (relu_kernel, relu_kernel_approximation, softmax_kernel):
        values = [curve(rho) for rho in GRID]
        assert values == sorted(values)


@pytest.mark.parametrize("grid", [(1, 1), (2, 2), (4, 2)])
@pytest.mark.parametrize("rho", [-0.8, 0.0, 1.0])
def test_superposition_flattens_the_kernel_even_without_interference(grid, rho):
    """Bind and bundle as FAVOR+S does, at a width where streams hardly interfere."""
    generator = torch.Generator().manual_seed(0)
    k, q = unit_streams(Draws(1, generator), 30_000, grid, rho)
    row = bipolar_keys(grid[1], 30_000, generator=generator, dtype=torch.float64)
    column = bipolar_keys(grid[0], 30_000, generator=generator, dtype=torch.float64)
    column[0] = row[0]
    keys, queries = (k * row).sum(0), (q * column).sum(0)
    product, norms = float(keys @ queries), float(keys.norm() * queries.norm())
    assert product == pytest.approx(rho, abs=0.06)  # what appendix D is about survives,
    kernel = norms * relu_kernel(product / norms)  # the kernel of ReLU features does not
    assert kernel == pytest.approx(superposed_relu_kernel(rho, grid), abs=0.02)
    if grid != (1, 1):
        assert kernel > relu_kernel(rho) + 0.1


@pytest.mark.parametrize("grid", [(2, 2), (3, 1)])
def test_at_a_small_width_it_is_flat_as_well(grid):
    generator = torch.Generator().manual_seed(2)
    for rho in (0.0, 1.0):
        found = simulate_superposed_relu_kernel(Draws(500, generator), rho, grid, 64)
        error = abs(found.mean - superposed_relu_kernel(rho, grid))
        assert error < 4 * found.standard_error + 0.01  # it is a limit: 64 is not infinite


def test_one_stream_is_the_plain_kernel():
    assert superposed_relu_kernel(0.3, (1, 1)) == relu_kernel(0.3)


def test_errors_say_what_fits():
    with pytest.raises(ValueError, match="cosine=1.1.*from -1 to 1"):
        relu_kernel(1.1)
    with pytest.raises(ValueError, match=r"grid=\(0, 2\) does not fit"):
        superposed_relu_kernel(0.0, (0, 2))
    with pytest.raises(ValueError, match="pass at least 2"):
        aligned_pair(0.5, 1)
