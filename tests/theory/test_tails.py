import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mimonets.experiments.bounds_simulation import Draws, simulate_sum
from mimonets.theory import bernstein_bound, hoeffding_bound

LIMITS = st.lists(st.floats(0.01, 10), min_size=1, max_size=8)


def exact_tail(t, limits):
    """All sign patterns, one by one."""
    sums = [
        abs(sum(s * a for s, a in zip(signs, limits, strict=True)))
        for signs in itertools.product((-1, 1), repeat=len(limits))
    ]
    return sum(value >= t - 1e-9 for value in sums) / len(sums)


@given(limits=LIMITS, share=st.floats(0.0, 1.2))
def test_no_sum_of_signs_crosses_either_bound(limits, share):
    t = share * sum(limits)
    tail = exact_tail(t + 1e-6, limits)  # strictly beyond t
    assert tail <= hoeffding_bound(t, limits) + 1e-12
    assert tail <= bernstein_bound(t, sum(a * a for a in limits), max(limits)) + 1e-12


def test_the_simulation_finds_the_exact_tail():
    limits = [1.0, 2.0, 0.5, 3.0, 1.0]
    generator = torch.Generator().manual_seed(0)
    found = simulate_sum(Draws(5_000, generator), 4.0, limits)
    assert abs(found.mean - exact_tail(4.0, limits)) < 4 * found.standard_error


def test_bernstein_is_sharper_for_variables_seldom_at_their_limit():
    assert bernstein_bound(16.0, 64 / 3, 1.0) < hoeffding_bound(16.0, [1.0] * 64)
    # ... and not otherwise: signs are always at their limit.
    assert bernstein_bound(16.0, 64.0, 1.0) > hoeffding_bound(16.0, [1.0] * 64)


def test_limits():
    assert hoeffding_bound(0.0, [1.0]) == 2.0
    assert hoeffding_bound(1.0, []) == 0.0
    assert hoeffding_bound(0.0, [0.0]) == 2.0
    assert bernstein_bound(1.0, 0.0, 0.0) == 0.0
    assert hoeffding_bound(3.0, [3.0, 4.0]) == 2 * math.exp(-9 / 50)


@pytest.mark.parametrize(
    ("call", "came"),
    [
        (lambda: hoeffding_bound(-1.0, [1.0]), "t=-1.0"),
        (lambda: hoeffding_bound(1.0, [1.0, -2.0]), "-2.0"),
        (lambda: bernstein_bound(math.nan, 1.0, 1.0), "t=nan"),
    ],
)
def test_negative_numbers_are_refused(call, came):
    with pytest.raises(ValueError, match="pass absolute values") as error:
        call()
    assert came in str(error.value)
