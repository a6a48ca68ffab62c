import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from mimonets import vsa
from oracles import circular_convolution_loops, gradients

dims = st.integers(1, 33)
seeds = st.integers(0, 10_000)


def draw(dim, seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dim, generator=generator, dtype=torch.float64)


@given(dim=dims, seed=seeds)
def test_circular_convolution_matches_its_definition_gradients_too(dim, seed):
    x, key = draw(dim, seed), draw(dim, seed + 1)
    assert_close(vsa.circular_convolution(x, key), circular_convolution_loops(x, key))
    fast = gradients(vsa.circular_convolution, [x, key])
    assert_close(fast, gradients(circular_convolution_loops, [x, key]))


@given(dim=dims, seed=seeds)
def test_the_circulant_matrix_binds_like_the_fft(dim, seed):
    x, keys = draw(dim, seed, 4), draw(dim, seed + 1, 3)
    by_matrix = torch.einsum("scj,bj->sbc", vsa.circulant(keys), x)
    assert_close(by_matrix, vsa.circular_convolution(x, keys[:, None]))


@given(dim=dims, seed=seeds)
def test_circular_convolution_commutes_and_associates(dim, seed):
    x, y, z = draw(dim, seed, 3)
    bind = vsa.circular_convolution
    assert_close(bind(x, y), bind(y, x))
    assert_close(bind(bind(x, y), z), bind(x, bind(y, z)))


@given(dim=dims, seed=seeds)
def test_correlation_is_convolution_with_the_approximate_inverse(dim, seed):
    x, key = draw(dim, seed, 2)
    by_inverse = vsa.circular_convolution(x, vsa.approximate_inverse(key))
    assert_close(vsa.circular_correlation(x, key), by_inverse)


UNBINDINGS = {
    "hadamard": (vsa.bipolar_keys, vsa.hadamard_product, vsa.hadamard_product),
    "unitary": (vsa.unitary_keys, vsa.circular_convolution, vsa.circular_correlation),
    "exact inverse": (
        vsa.gaussian_keys,
        vsa.circular_convolution,
        lambda x, key: vsa.circular_convolution(x, vsa.exact_inverse(key)),
    ),
    "matrix": (vsa.matrix_keys, vsa.matrix_bind, vsa.matrix_unbind),
}


@pytest.mark.parametrize("name", UNBINDINGS)
@given(dim=dims, seed=seeds)
def test_unbinding_undoes_binding(name, dim, seed):
    keys, bind, unbind = UNBINDINGS[name]
    generator = torch.Generator().manual_seed(seed)
    key = keys(1, dim, generator=generator, dtype=torch.float64)[0]
    x = draw(dim, seed + 1, 5)
    # Random keys can be badly conditioned; the tolerance covers that, not a wrong formula.
    assert_close(unbind(bind(x, key), key), x, rtol=1e-4, atol=1e-4)


def test_unbinding_gaussian_keys_approximately_leaves_noise_of_known_size():
    generator = torch.Generator().manual_seed(0)
    keys = vsa.gaussian_keys(200, 1024, generator=generator)
    x = torch.randn(200, 1024, generator=generator)
    noise = vsa.circular_correlation(vsa.circular_convolution(x, keys), keys) - x
    # |spectrum|^2 of a Gaussian key is exponential with mean 1 and variance 1.
    assert_close(noise.norm() / x.norm(), torch.tensor(1.0), rtol=0.05, atol=0)


@given(dim=st.integers(2, 33), seed=seeds)
def test_binding_preserves_inner_products_for_isometric_keys(dim, seed):
    generator = torch.Generator().manual_seed(seed)
    x, y = draw(dim, seed, 2)
    for keys, bind in [
        (vsa.bipolar_keys, vsa.hadamard_product),
        (vsa.unitary_keys, vsa.circular_convolution),
    ]:
        key = keys(1, dim, generator=generator, dtype=torch.float64)[0]
        assert_close(bind(x, key) @ bind(y, key), x @ y)


@pytest.mark.parametrize(
    "bind", [vsa.hadamard_product, vsa.circular_convolution, vsa.circular_correlation]
)
def test_a_key_of_another_length_is_refused(bind):
    with pytest.raises(ValueError, match=r"\(2, 5\).*\(4,\).*dim=5"):
        bind(torch.ones(2, 5), torch.ones(4))


@pytest.mark.parametrize("bind", [vsa.matrix_bind, vsa.matrix_unbind])
@pytest.mark.parametrize("shape", [(5,), (5, 4), (4, 4)])
def test_a_matrix_key_of_another_shape_is_refused(bind, shape):
    with pytest.raises(ValueError, match=r"ends in \(5, 5\)"):
        bind(torch.ones(2, 5), torch.ones(shape))
