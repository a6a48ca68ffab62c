import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mimonets.experiments.bounds_simulation import Draws, simulate_crosstalk, unit_streams
from mimonets.theory import (
    bernstein,
    chebyshev,
    crosstalk,
    crosstalk_peak,
    hoeffding_per_pair,
    markov_over_columns,
    markov_over_rows,
    typical_crosstalk,
    typical_peak,
)
from mimonets.theory.interference import PAPER_BOUNDS
from mimonets.vsa import bipolar_keys


def relative_errors(k, q, own):
    """The error of the score for every grid of stream keys, as the paper writes it."""
    (columns, dim), rows, (u, n) = k.shape, len(q), own
    signal = sum(float(k[n, p] * q[u, p]) for p in range(dim))
    places = [(u, w) for w in range(columns)] + [(t, n) for t in range(rows) if t != u]
    errors = []
    for signs in itertools.product((-1, 1), repeat=len(places) * dim):
        a = {place: signs[number * dim : (number + 1) * dim] for number, place in enumerate(places)}
        score = sum(
            float(k[w, p]) * a[u, w][p] * float(q[t, p]) * a[t, n][p]
            for w in range(columns)
            for t in range(rows)
            for p in range(dim)
        )
        errors.append((score - signal) / signal)
    return errors


def small_case(seed, grid, dim):
    generator = torch.Generator().manual_seed(seed)
    k = torch.randn(grid[1], dim, generator=generator, dtype=torch.float64)
    q = torch.randn(grid[0], dim, generator=generator, dtype=torch.float64)
    return k, q


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from([((2, 2), 2), ((1, 3), 2), ((3, 1), 2), ((2, 3), 2), ((1, 1), 5)]),
    alpha=st.floats(0.1, 20),
)
def test_no_grid_of_keys_crosses_any_bound(seed, shape, alpha):
    grid, dim = shape
    k, q = small_case(seed, grid, dim)
    own = (seed % grid[0], seed % grid[1])
    errors = relative_errors(k, q, own)
    probability = sum(abs(error) > alpha * (1 + 1e-9) for error in errors) / len(errors)
    table = crosstalk(k, q, own, alpha)
    for bound in PAPER_BOUNDS.values():
        assert probability <= bound(table) + 1e-9
    assert probability <= bernstein(table, crosstalk_peak(k, q, own, alpha)) + 1e-9


@pytest.mark.parametrize(("grid", "own"), [((2, 2), (1, 0)), ((1, 3), (0, 2)), ((3, 1), (1, 0))])
def test_chebyshev_is_the_variance_exactly_and_peak_is_never_exceeded(grid, own):
    k, q = small_case(3, grid, 3)
    errors = relative_errors(k, q, own)
    variance = sum(error**2 for error in errors) / len(errors)
    assert sum(errors) == pytest.approx(0, abs=1e-9 * len(errors))
    assert chebyshev(crosstalk(k, q, own, alpha=1.0)) == pytest.approx(variance)
    assert max(map(abs, errors)) <= 3 * crosstalk_peak(k, q, own, alpha=1.0)


def test_the_simulation_finds_the_exact_probability():
    k, q = small_case(1, (2, 2), 3)
    errors = relative_errors(k, q, (1, 1))
    exact = sum(abs(error) > 0.8 for error in errors) / len(errors)
    found = simulate_crosstalk(Draws(5_000, torch.Generator().manual_seed(0)), k, q, (1, 1), 0.8)
    assert 0.05 < exact < 0.95
    assert abs(found.mean - exact) < 4 * found.standard_error


@pytest.mark.parametrize("grid", [(2, 2), (4, 4), (1, 3)])
@pytest.mark.parametrize(
    ("dim", "cosine", "alpha"), [(33, 0.9, 0.5), (128, 0.5, 1.0), (256, 1, 0.4)]
)
def test_simulated_crosstalk_stays_below_every_bound(grid, dim, cosine, alpha):
    generator = torch.Generator().manual_seed(dim)
    k, q = unit_streams(Draws(1, generator), dim, grid, cosine)
    found = simulate_crosstalk(Draws(500, generator), k, q, (0, 0), alpha)
    table = crosstalk(k, q, (0, 0), alpha)
    for bound in PAPER_BOUNDS.values():
        assert found.mean <= bound(table)
    assert found.mean <= bernstein(table, crosstalk_peak(k, q, (0, 0), alpha))


def test_the_table_in_loops():
    k, q = small_case(0, (3, 2), 5)
    table = crosstalk(k, q, (2, 1), alpha=0.5)
    for t, w in itertools.product(range(3), range(2)):
        squares = sum(float(k[w, p] * q[t, p]) ** 2 for p in range(5))
        signal = 0.5 * sum(float(k[1, p] * q[2, p]) for p in range(5))
        expected = 0 if (t, w) == (2, 1) else squares / signal**2
        assert table[t][w] == pytest.approx(expected)


def test_the_typical_table_and_peak_are_exact_for_bipolar_vectors():
    signs = bipolar_keys(5, 64, generator=torch.Generator().manual_seed(0))
    k, q = signs[:2], torch.cat([signs[:1], signs[2:4]])
    for row, expected in zip(
        crosstalk(k, q, (0, 0), 0.5), typical_crosstalk(64, (3, 2), 0.5), strict=True
    ):
        assert row == pytest.approx(expected)
    assert crosstalk_peak(k, q, (0, 0), 0.5) == pytest.approx(typical_peak(64, (3, 2), 0.5))


TABLES = st.integers(1, 5).flatmap(
    lambda width: st.lists(
        st.lists(st.floats(0, 2), min_size=width, max_size=width), min_size=1, max_size=5
    )
)


@given(TABLES)
def test_markov_never_says_more_than_chebyshev(table):
    """The sum of roots is at least the root of the sum, and that at least the sum, below 1."""
    least = min(1.0, chebyshev(table))
    assert markov_over_columns(table) >= least * (1 - 1e-9)
    assert markov_over_rows(table) >= least * (1 - 1e-9)


@pytest.mark.parametrize("grid", [(2, 2), (4, 4)])
def test_at_the_papers_head_size_the_exponential_bound_says_nothing(grid):
    table = typical_crosstalk(64, grid, alpha=0.5)
    assert hoeffding_per_pair(table) > 1
    assert chebyshev(table) < 1


def width_for(bound, grid, probability=0.05):
    return next(
        dim
        for dim in itertools.count(1)
        if bound(typical_crosstalk(dim, grid, 0.5), typical_peak(dim, grid, 0.5)) <= probability
    )


@pytest.mark.parametrize(
    ("grid", "informative", "five_percent"), [((2, 2), 130, 240), ((4, 4), 6123, 1200)]
)
def test_the_widths_that_the_page_on_theory_names(grid, informative, five_percent):
    def hoeffding(table, peak):
        return hoeffding_per_pair(table)

    def variance(table, peak):
        return chebyshev(table)

    assert width_for(hoeffding, grid, probability=1) == informative
    assert width_for(variance, grid) == five_percent


def test_bernstein_needs_a_width_linear_in_the_streams():
    def hoeffding(table, peak):
        return hoeffding_per_pair(table)

    ours = [width_for(bernstein, grid) for grid in ((2, 2), (3, 3))]
    papers = [width_for(hoeffding, grid) for grid in ((2, 2), (3, 3))]
    assert ours == [104, 276]  # 3 and 8 others: 34.4 for each
    assert papers == [345, 2954]
    assert width_for(bernstein, (4, 4)) == 517
    assert ours[1] / ours[0] == pytest.approx(8 / 3, rel=0.02)
    assert papers[1] / papers[0] > (8 / 3) ** 2


def test_alone_nothing_interferes_and_unaligned_nothing_is_said():
    table = typical_crosstalk(8, (1, 1), 0.5)
    assert all(bound(table) == 0 for bound in PAPER_BOUNDS.values())
    assert bernstein(table, 0.0) == 0
    k = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    q = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    for table in (crosstalk(k, q, (0, 0), 0.5), typical_crosstalk(8, (2, 2), 0.5, cosine=0.0)):
        assert all(bound(table) > 1 for bound in PAPER_BOUNDS.values())
    assert bernstein(table, crosstalk_peak(k, q, (0, 0), 0.5)) == 2
    with pytest.raises(ValueError, match="all must be at least 1"):
        typical_crosstalk(8, (0, 2), 0.5)
