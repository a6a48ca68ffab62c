import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimonets.theory import any_pair_bound, chebyshev, plan, typical_crosstalk
from mimonets.theory.planner import MOST_STREAMS
from mimonets.vsa import squarest_grid


def test_the_papers_example():
    found = plan(64, 4)
    assert round(found.pair_bound, 4) == 0.0474
    assert found.pair_probability < found.pair_bound
    assert found.grid == (2, 2)
    keys, *_, papers, ours = found.lines
    assert keys.bound == any_pair_bound(64, 4)
    assert papers.bound == chebyshev(typical_crosstalk(64, (2, 2), 0.5))  # the least of the four
    assert ours.width_needed < papers.width_needed


@settings(max_examples=8, deadline=None)
@given(
    dim=st.integers(1, 2000),
    streams=st.integers(2, 40),
    probability=st.floats(0.001, 0.5),
    alpha=st.floats(0.2, 1),
    tokens=st.sampled_from([1, 100]),
)
def test_what_is_carried_fits_and_one_more_does_not(dim, streams, probability, alpha, tokens):
    asked = {"probability": probability, "alpha": alpha, "tokens": tokens}
    found = plan(dim, streams, **asked)
    for number, line in enumerate(found.lines):
        carried, needed = line.streams_carried, line.width_needed
        slack = probability * 1e-9
        if carried > 1:
            assert plan(dim, carried, **asked).lines[number].bound <= probability + slack
        if carried < MOST_STREAMS:
            assert plan(dim, carried + 1, **asked).lines[number].bound > probability - slack
        if needed is not None and needed < 2**16:
            assert plan(needed, streams, **asked).lines[number].bound <= probability + slack
            if needed > 1:
                more = plan(needed - 1, streams, **asked).lines[number].bound
                assert more > probability - slack


def test_the_demo_is_beyond_what_the_bounds_allow():
    """Its four streams share 32 maps after the first layer, and it works all the same."""
    assert all(line.bound > 0.05 for line in plan(32, 4).lines)


def test_more_tokens_need_more_width():
    widths = [plan(64, 4, tokens=tokens).lines[-1].width_needed for tokens in (1, 16, 1024)]
    assert widths == sorted(set(widths))


def test_a_lone_stream_has_nothing_to_fear_but_a_twin_in_the_dictionary():
    bounds = [line.bound for line in plan(8, 1, items=5).lines]
    assert bounds == [0, 0, 4 / 2**8, 0, 0]


def test_widths_beyond_a_million_are_not_searched():
    assert plan(64, 4096, alpha=0.01).lines[3].width_needed is None


def test_it_says_what_is_not_covered():
    text = " ".join(plan(64, 4).not_covered)
    for words in ("Learned keys", "Nonlinear trunks", "Correlated inputs", "cosine 0"):
        assert words in text


def test_a_plan_is_plain_data():
    data = plan(16, 2).as_dict()
    assert data["dim"] == 16
    assert set(data["lines"][0]) == {
        "question",
        "source",
        "bound",
        "streams_carried",
        "width_needed",
    }


@given(st.integers(1, 300))
def test_grids_hold_all_streams(streams):
    rows, columns = squarest_grid(streams)
    assert rows * columns == streams
    assert rows <= columns


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"dim": 0}, "dim=0 does not fit: pass an integer from 1 to 65536"),
        ({"dim": 64.5}, "dim=64.5 does not fit: pass an integer"),
        ({"num_streams": 4.5}, "num_streams=4.5 does not fit: pass an integer"),
        ({"num_streams": 5000}, "num_streams=5000 does not fit"),
        ({"items": 0}, "items=0 does not fit"),
        ({"tokens": -1}, "tokens=-1 does not fit"),
        ({"probability": 1.0}, "between 0 and 1, such as 0.05"),
        ({"alpha": 0.0}, "tolerate a share above 0"),
        ({"cosine": 0.0}, "at 0 there is nothing to read"),
        ({"cosine": 1.5}, "from -1 to 1"),
        ({"angle": 100.0}, "the paper takes 70"),
    ],
)
def test_errors_say_what_came_and_what_fits(asked, message):
    with pytest.raises(ValueError, match=message):
        plan(**{"dim": 64, "num_streams": 4, **asked})
