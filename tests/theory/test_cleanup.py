import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mimonets.experiments.bounds_simulation import (
    Draws,
    simulate_cleanup_noise,
    simulate_wrong_item,
)
from mimonets.theory import cleanup_noise_bound, cleanup_noise_typical, wrong_item_bound
from mimonets.vsa import bipolar_keys, gaussian_keys


def exact_noise(values, item, stream, alpha):
    """Every set of keys, in loops."""
    streams, dim = values.shape
    signal = float(values[stream] @ item)
    off = total = 0
    for signs in itertools.product((-1.0, 1.0), repeat=streams * dim):
        keys = torch.tensor(signs).view(streams, dim)
        read = sum(
            float(keys[i, d] * values[i, d] * keys[stream, d] * item[d])
            for i in range(streams)
            for d in range(dim)
        )
        off += abs(read - signal) > alpha * abs(signal) + 1e-6
        total += 1
    return off / total


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), alpha=st.floats(0.05, 3), streams=st.integers(1, 2))
def test_no_set_of_values_crosses_the_bound(seed, alpha, streams):
    generator = torch.Generator().manual_seed(seed)
    values, item = torch.randn(streams, 4, generator=generator), torch.randn(4, generator=generator)
    assert exact_noise(values, item, 0, alpha) <= cleanup_noise_bound(values, item, 0, alpha) + 1e-9


def test_the_simulation_finds_the_exact_probability():
    generator = torch.Generator().manual_seed(5)
    values, item = torch.randn(3, 3, generator=generator), torch.randn(3, generator=generator)
    exact = exact_noise(values, item, 1, 0.5)
    found = simulate_cleanup_noise(Draws(5_000, generator), values, item, 1, 0.5)
    assert 0 < exact < 1
    assert abs(found.mean - exact) < 4 * found.standard_error


@pytest.mark.parametrize(("dim", "streams"), [(33, 2), (64, 4), (200, 16)])
@pytest.mark.parametrize("alpha", [0.3, 1.0])
@pytest.mark.parametrize("draw", [bipolar_keys, gaussian_keys])
def test_simulated_noise_stays_below_the_bound(dim, streams, alpha, draw):
    generator = torch.Generator().manual_seed(dim)
    values = draw(streams, dim, generator=generator)
    found = simulate_cleanup_noise(Draws(1_000, generator), values, values[-1], streams - 1, alpha)
    assert found.mean < cleanup_noise_bound(values, values[-1], streams - 1, alpha)


def test_the_typical_form_is_exact_for_bipolar_values():
    values = bipolar_keys(5, 48, generator=torch.Generator().manual_seed(0))
    bound = cleanup_noise_bound(values, values[2], 2, 0.7)
    assert bound == pytest.approx(cleanup_noise_typical(48, 5, 0.7))


def test_the_typical_form_is_no_bound():
    """Two streams carry the same unit vector along an axis: always off, at any width."""
    axis = torch.eye(1024)[0]
    values = torch.stack([axis, axis])
    found = simulate_cleanup_noise(Draws(100), values, axis, 0, 0.5)
    assert found.mean == 1.0
    assert cleanup_noise_typical(1024, 2, 0.5) < 1e-50
    assert cleanup_noise_bound(values, axis, 0, 0.5) > 1  # the theorem itself holds


def test_noise_grows_with_streams_and_falls_with_width():
    assert cleanup_noise_typical(64, 1, 0.5) == 0
    by_streams = [cleanup_noise_typical(64, streams, 0.5) for streams in range(1, 20)]
    assert by_streams == sorted(by_streams)
    by_width = [cleanup_noise_typical(dim, 4, 0.5) for dim in range(1, 500, 7)]
    assert by_width == sorted(by_width, reverse=True)
    assert cleanup_noise_typical(64, 4, 0.5, cosine=0.0) == 2


@pytest.mark.parametrize(("dim", "streams", "items"), [(16, 2, 4), (64, 4, 10), (40, 8, 3)])
def test_wrong_items_are_read_less_often_than_bounded(dim, streams, items):
    generator = torch.Generator().manual_seed(0)
    found = simulate_wrong_item(Draws(500, generator), dim, streams, items)
    assert found.mean < wrong_item_bound(dim, streams, items)
    assert found.mean > 0


def test_alone_an_entry_is_mistaken_only_for_its_twin():
    assert wrong_item_bound(3, 1, 5) == 4 / 8
    by_streams = [wrong_item_bound(64, streams, 10) for streams in range(1, 30)]
    assert by_streams == sorted(by_streams)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: wrong_item_bound(4, 1, 0), "items=0 does not fit: pass an integer >= 1"),
        (lambda: wrong_item_bound(4, 0, 2), "num_streams=0 does not fit: pass an integer >= 1"),
        (lambda: cleanup_noise_typical(64, 0, 0.5), "num_streams=0 does not fit"),
        (lambda: cleanup_noise_typical(-64, 3, 0.5), "dim=-64 does not fit: pass an integer >= 1"),
        (lambda: cleanup_noise_typical(64, 2.5, 0.5), "num_streams=2.5 does not fit"),
        (lambda: cleanup_noise_bound(torch.ones(2, 4), torch.ones(4), -1, 0.5), "from 0 to 1"),
        (lambda: cleanup_noise_bound(torch.ones(2, 4), torch.ones(4), 2, 0.5), "stream=2 is none"),
    ],
)
def test_errors_say_what_came_and_what_fits(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()
