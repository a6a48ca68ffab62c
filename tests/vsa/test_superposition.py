import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from mimonets.vsa import (
    average_copies,
    check_active_streams,
    fold_streams,
    stream_assignment,
    unfold_streams,
    whole_and_short_groups,
)
from oracles import gradients

modes = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@given(mode=modes, batch=st.integers(1, 40))
def test_every_batch_comes_back_whole_and_in_order(mode, batch):
    num_streams, active = mode
    x = torch.arange(batch * 2, dtype=torch.float64).view(batch, 2)
    streams = fold_streams(x, num_streams, active)
    assert streams.shape == (-(-batch // active), num_streams, 2)
    assert_close(unfold_streams(streams, batch, active), x)


@given(mode=modes, batch=st.integers(1, 40))
def test_streams_hold_only_inputs_of_their_own_group_spread_evenly(mode, batch):
    num_streams, active = mode
    streams = fold_streams(torch.arange(batch), num_streams, active)
    for group, carried in enumerate(streams.tolist()):
        own = range(group * active, min(batch, (group + 1) * active))
        copies = [carried.count(member) for member in own]
        assert set(carried) == set(own)
        assert max(copies) - min(copies) <= 1


@given(mode=modes)
def test_assignment_is_stream_modulo_active(mode):
    num_streams, active = mode
    assert stream_assignment(active, num_streams).tolist() == [
        k % active for k in range(num_streams)
    ]


@given(mode=modes, groups=st.integers(1, 3))
def test_averaging_matches_a_loop_gradients_too(mode, groups):
    num_streams, active = mode
    x = torch.randn(groups, num_streams, 3, dtype=torch.float64)

    def slow(x):
        rows = [
            [
                x[g, [k for k in range(num_streams) if k % active == i]].mean(dim=0)
                for i in range(active)
            ]
            for g in range(groups)
        ]
        return torch.stack([torch.stack(row) for row in rows])

    assert_close(average_copies(x, active), slow(x))
    fast = gradients(lambda x: average_copies(x, active), [x])
    assert_close(fast, gradients(slow, [x]))


def test_grouping_copies_nothing():
    x = torch.randn(10, 3)
    whole, short = whole_and_short_groups(x, active=4)
    assert whole.data_ptr() == x.data_ptr()
    assert short.data_ptr() == x[8:].data_ptr()


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="empty batch.*at least one input"):
        whole_and_short_groups(torch.empty(0, 3), active=2)


@pytest.mark.parametrize("active", [0, -1, 5])
def test_modes_outside_one_to_n_are_refused(active):
    with pytest.raises(ValueError, match=rf"active_streams={active} does not fit 4.*1 .* 4"):
        check_active_streams(active, 4)


@pytest.mark.parametrize("active", [np.int64(2), np.uint8(2)])
def test_integers_of_numpy_are_modes(active):
    assert check_active_streams(active, 4) == 2
    assert type(check_active_streams(active, 4)) is int


@pytest.mark.parametrize("active", [2.0, "2", True, np.float32(2)])
def test_modes_that_are_no_integers_are_refused(active):
    with pytest.raises(ValueError, match="must be an integer: pass one from 1"):
        check_active_streams(active, 4)


@pytest.mark.parametrize("batch", [0, 2, 5])
def test_unfolding_a_batch_of_another_size_is_refused(batch):
    with pytest.raises(ValueError, match=f"2 groups of 2 .*batch of {batch}"):
        unfold_streams(torch.zeros(2, 2), batch, 2)
