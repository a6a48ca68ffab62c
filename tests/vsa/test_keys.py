import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from mimonets.vsa import (
    bipolar_keys,
    gaussian_keys,
    matrix_keys,
    similarity,
    slot_keys,
    unitary_keys,
)

DRAWS = [bipolar_keys, gaussian_keys, unitary_keys, matrix_keys, slot_keys]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("draw", DRAWS)
def test_the_generator_decides_the_keys_and_nothing_else_does(draw):
    before = torch.get_rng_state()
    first, second, other = (draw(3, 17, generator=seeded(s)) for s in (1, 1, 2))
    assert_close(first, second, rtol=0, atol=0)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("draw", DRAWS)
def test_keys_come_in_the_dtype_asked_for(draw):
    assert draw(2, 5, generator=seeded(), dtype=torch.float64).dtype == torch.float64
    assert draw(2, 5, generator=seeded()).dtype == torch.float32


def test_bipolar_keys_are_fair_signs():
    keys = bipolar_keys(4, 10_000, generator=seeded())
    assert set(keys.unique().tolist()) == {-1.0, 1.0}
    assert keys.mean().abs() < 0.02  # four standard errors


def test_gaussian_keys_have_variance_one_over_d():
    keys = gaussian_keys(100, 64, generator=seeded())
    assert_close(keys.var() * 64, torch.tensor(1.0), rtol=0.08, atol=0)
    assert keys.mean().abs() < 4 / (6400 * 64) ** 0.5


def test_matrix_keys_nearly_preserve_lengths():
    keys = matrix_keys(1, 400, generator=seeded())
    x = torch.randn(400, generator=seeded(1))
    assert_close((keys[0] @ x).norm() / x.norm(), torch.tensor(1.0), rtol=0.15, atol=0)


@given(streams=st.integers(1, 9), more=st.integers(0, 20), seed=st.integers(0, 1000))
def test_slots_never_meet(streams, more, seed):
    dim = streams + more
    keys = slot_keys(streams, dim, generator=seeded(seed))
    used = keys.abs().sum(dim=-1) > 0  # s d
    assert (used.sum(dim=0) == 1).all(), "every dimension has one owner"
    assert used.sum(dim=1).min() >= dim // streams
    bound = keys @ torch.randn(dim, generator=seeded(seed + 1))
    assert_close(bound @ bound.T, (bound @ bound.T).diag().diag())


def test_slots_superpose_with_the_variance_of_matrix_keys():
    x = torch.randn(6, 300, generator=seeded(3))
    slots, matrices = (
        torch.einsum("scd,sd->c", draw(6, 300, generator=seeded(4)), x)
        for draw in (slot_keys, matrix_keys)
    )
    assert_close(slots.norm() / matrices.norm(), torch.tensor(1.0), rtol=0.15, atol=0)


def test_slots_need_a_dimension_each():
    with pytest.raises(ValueError, match="at least 5 dimensions"):
        slot_keys(5, 4)


@given(dim=st.integers(1, 70), seed=st.integers(0, 1000))
def test_unitary_keys_have_a_flat_spectrum_in_every_dimension(dim, seed):
    keys = unitary_keys(3, dim, generator=seeded(seed), dtype=torch.float64)
    assert keys.dtype == torch.float64
    assert_close(torch.fft.fft(keys).abs(), torch.ones(3, dim, dtype=torch.float64))


@pytest.mark.parametrize("draw", [bipolar_keys, gaussian_keys, unitary_keys])
def test_keys_become_orthogonal_as_the_dimension_grows(draw):
    def crosstalk(dim):
        keys = draw(20, dim, generator=seeded())
        return similarity(keys, keys).triu(1).square().sum().div(190).sqrt()

    # The root mean square of the cosine of random directions is 1 / sqrt(D).
    for dim in (64, 1024):
        assert_close(crosstalk(dim) * dim**0.5, torch.tensor(1.0), rtol=0.25, atol=0)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize(("streams", "dim"), [(0, 5), (5, 0)])
def test_no_keys_or_no_dimension_is_refused(draw, streams, dim):
    with pytest.raises(ValueError, match=f"{streams} stream keys.* {dim}.*at least 1"):
        draw(streams, dim)
