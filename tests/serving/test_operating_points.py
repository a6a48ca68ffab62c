from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mimonets.serving.operating_points import ServiceTime, fit_service_time, useful_points
from serving.fakes import make_point


def seconds_by_hand(time, inputs, active):
    """Walk through a batch group by group."""
    calls, passes, full_groups = 0, 0, 0
    while inputs >= active:
        inputs, passes, full_groups = inputs - active, passes + 1, full_groups + 1
    calls += full_groups > 0
    if inputs:
        passes, calls = passes + 1, calls + 1
    return calls * time.per_call + passes * time.per_pass


@given(st.integers(1, 40), st.integers(1, 6))
def test_service_time_agrees_with_a_walk_through_the_groups(inputs, active):
    time = ServiceTime(per_call=3.0, per_pass=8.0)
    assert time.of(inputs, active) == seconds_by_hand(time, inputs, active)


def test_the_fit_finds_the_coefficients_in_noise():
    rng = np.random.default_rng(0)
    exact = ServiceTime(0.002, 0.008, 0.0005)
    measured = {
        (A, n): exact.of(n, A) * float(np.exp(rng.normal(0, 0.01)))
        for A in (1, 2, 4)
        for n in (1, 2, 4, 8, 16)
    }
    fitted = fit_service_time(measured)
    for A, n in measured:
        assert fitted.of(n, A) == pytest.approx(exact.of(n, A), rel=0.03)


def test_the_fit_never_gives_a_negative_coefficient():
    # Larger batches are cheaper than proportional: plain least squares would make s negative.
    measured = {(1, 1): 0.010, (1, 4): 0.012, (1, 16): 0.011}
    fitted = fit_service_time(measured)
    assert min(fitted.per_call, fitted.per_pass, fitted.per_input) >= 0


def test_a_fit_without_measurements_is_refused():
    with pytest.raises(ValueError, match="at least one measured time"):
        fit_service_time({})


pairs = st.lists(
    st.tuples(st.integers(1, 50), st.integers(1, 100)), min_size=1, max_size=8, unique=True
)


@given(pairs)
def test_useful_points_are_the_concave_hull(pairs):
    points = [make_point(1, ServiceTime(per_pass=cost), right / 100) for cost, right in pairs]
    kept = useful_points(points)
    assert [one.cost for one in kept] == sorted({one.cost for one in kept}, reverse=True)
    assert kept[0].accuracy == max(one.accuracy for one in points)
    for point in points:  # no point lies above the line between two neighbours that were kept
        for dear, cheap in pairwise(kept):
            if cheap.cost <= point.cost <= dear.cost:
                share = (point.cost - cheap.cost) / (dear.cost - cheap.cost)
                line = share * dear.accuracy + (1 - share) * cheap.accuracy
                assert point.accuracy <= line + 1e-9
    if len(kept) >= 3:  # and each one that was kept lies above the line between its neighbours
        for dear, middle, cheap in zip(kept, kept[1:], kept[2:], strict=False):
            share = (middle.cost - cheap.cost) / (dear.cost - cheap.cost)
            assert middle.accuracy > share * dear.accuracy + (1 - share) * cheap.accuracy


def test_points_of_unknown_accuracy_are_all_kept_dearest_first():
    points = [make_point(A, ServiceTime(per_pass=8.0)) for A in (4, 1, 2)]
    assert [point.inputs_per_pass for point in useful_points(points)] == [1, 2, 4]


def test_noise_while_measuring_does_not_drop_the_fast_points():
    """Measured on a machine so busy that passes seem to be free and only inputs to cost."""
    seconds = {(1, 1): 0.4, (1, 2): 0.5, (1, 4): 0.9, (4, 4): 0.9, (4, 8): 1.6, (4, 16): 3.2}
    fitted = fit_service_time(seconds)
    assert fitted.per_pass > 0
    points = [make_point(A, fitted, accuracy) for A, accuracy in ((1, 0.98), (4, 0.96))]
    assert [point.inputs_per_pass for point in useful_points(points)] == [1, 4]
