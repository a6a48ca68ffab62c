import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mimonets.experiments.bounds_simulation import (
    Draws,
    simulate_hadamard_norm,
    simulate_interference,
)
from mimonets.theory import (
    any_pair_bound,
    hadamard_norm_mean,
    hadamard_norm_tail,
    interference_bound,
    interference_probability,
    streams_apart,
    width_apart,
)
from mimonets.vsa import bipolar_keys, gaussian_keys


def generator():
    return torch.Generator().manual_seed(0)


def test_the_papers_two_figures():
    assert round(interference_bound(16, 70), 3) == 0.785
    assert round(interference_bound(64, 70), 4) == 0.0474


@pytest.mark.parametrize("dim", [1, 2, 7, 12])
@pytest.mark.parametrize("angle", [0, 45, 60, 70, 89, 90])
def test_the_exact_probability_counts_every_key(dim, angle):
    """Against one key of ones: the other key decides."""
    cosines = [abs(sum(key)) / dim for key in itertools.product((-1, 1), repeat=dim)]
    wanted = math.cos(math.radians(angle)) - 1e-9
    share = sum(cosine >= wanted for cosine in cosines) / len(cosines)
    assert interference_probability(dim, angle) == pytest.approx(share, abs=1e-15)


@given(dim=st.integers(1, 400), angle=st.floats(0, 90))
def test_the_exact_probability_is_never_above_the_bound(dim, angle):
    assert interference_probability(dim, angle) <= interference_bound(dim, angle)


@pytest.mark.parametrize("dim", [5, 16, 64])
@pytest.mark.parametrize("keys", [bipolar_keys, gaussian_keys])
def test_simulated_keys_stay_below_the_bound(dim, keys):
    found = simulate_interference(Draws(4_000, generator()), dim, 70, keys=keys)
    assert found.mean + 4 * found.standard_error < interference_bound(dim, 70)
    if keys is bipolar_keys:
        exact = interference_probability(dim, 70)
        assert abs(found.mean - exact) < 4 * found.standard_error


def test_one_side_alone_needs_half_of_the_bound():
    """The paper speaks of angles below 70 degrees; its formula counts those above 110 too."""
    one_side = interference_probability(64) / 2
    assert one_side < interference_bound(64) / 2


@pytest.mark.parametrize(("dim", "streams"), [(64, 4), (128, 9), (32, 3)])
def test_any_pair_of_several_keys_stays_below_the_union(dim, streams):
    found = simulate_interference(Draws(2_000, generator()), dim, num_streams=streams)
    alone = simulate_interference(Draws(2_000, generator()), dim)
    assert alone.mean < found.mean < any_pair_bound(dim, streams)


@given(dim=st.integers(1, 300), probability=st.floats(0.001, 0.5), angle=st.floats(20, 85))
def test_streams_apart_is_the_most_that_fits(dim, probability, angle):
    most = streams_apart(dim, probability, angle)
    assert most >= 1
    if most < 10**8:  # above, one more changes less than rounding does
        assert any_pair_bound(dim, most, angle) <= probability * (1 + 1e-9)
        assert any_pair_bound(dim, most + 1, angle) >= probability * (1 - 1e-9)


@given(streams=st.integers(2, 1000), probability=st.floats(0.001, 0.5), angle=st.floats(5, 85))
def test_width_apart_is_the_least_that_fits(streams, probability, angle):
    width = width_apart(streams, probability, angle)
    assert any_pair_bound(width, streams, angle) <= probability * (1 + 1e-9)
    assert width == 1 or any_pair_bound(width - 1, streams, angle) >= probability * (1 - 1e-9)


def test_counting_stops_at_a_thousand_million():
    assert streams_apart(12_888, 0.05) == 10**9


def test_a_lone_stream_meets_nobody():
    assert any_pair_bound(4, 1) == 0
    assert width_apart(1, 0.05) == 1


@pytest.mark.parametrize("dim", [2, 9, 64])
@pytest.mark.parametrize("one_hot", [True, False])
def test_the_norm_of_a_hadamard_product(dim, one_hot):
    """Whatever the distribution of X is, if Y is uniform."""
    direction = torch.eye(dim)[0] if one_hot else None
    draws = Draws(5_000, generator())
    mean = simulate_hadamard_norm(draws, dim, direction=direction)
    assert abs(mean.mean - hadamard_norm_mean(dim)) < 4 * mean.standard_error
    for beta in (0.1, 0.5, 1.0, 3.0):
        tail = simulate_hadamard_norm(draws, dim, beta, direction)
        assert tail.mean <= hadamard_norm_tail(beta)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: interference_bound(0), "dim=0 does not fit: pass an integer >= 1"),
        (lambda: interference_bound(8, 91), "0 to 90 degrees; the paper takes 70"),
        (lambda: any_pair_bound(8, 0), "num_streams=0 does not fit: pass an integer >= 1"),
        (lambda: streams_apart(-5, 0.05), "dim=-5 does not fit: pass an integer >= 1"),
        (lambda: streams_apart(8, 0.0), "between 0 and 1, such as 0.05"),
        (lambda: width_apart(4, 0.05, 90), "ask for an angle below 90"),
        (lambda: hadamard_norm_tail(-0.1), "pass 0 or more"),
    ],
)
def test_errors_say_what_fits(call, message):
    with pytest.raises(ValueError, match=message):
        call()
