import pytest
import torch
from torch.testing import assert_close

from mimonets import vsa


@pytest.mark.parametrize(
    ("keys", "bind", "unbind"),
    [
        (vsa.bipolar_keys, vsa.hadamard_product, vsa.hadamard_product),
        (vsa.gaussian_keys, vsa.circular_convolution, vsa.circular_correlation),
    ],
)
def test_cleanup_reads_values_out_of_a_superposition(keys, bind, unbind):
    generator = torch.Generator().manual_seed(0)
    values = vsa.bipolar_keys(50, 1024, generator=generator)
    stream_keys = keys(5, 1024, generator=generator)
    superposition = vsa.bundle(bind(values[:5], stream_keys))
    index, similarity = vsa.cleanup(unbind(superposition, stream_keys), values)
    assert index.tolist() == [0, 1, 2, 3, 4]
    # One signal of norm 1 beside four noises of the same norm (HRR adds its own).
    assert (similarity > 0.3).all()
    assert (similarity < 0.6).all()


def test_similarity_is_the_cosine():
    x, y = torch.randn(3, 7), torch.randn(5, 7)
    expected = [[a @ b / (a.norm() * b.norm()) for b in y] for a in x]
    assert_close(vsa.similarity(x, y), torch.tensor(expected))


def test_bundle_adds_along_any_axis():
    x = torch.randn(2, 3, 4)
    assert_close(vsa.bundle(x, dim=1), x[:, 0] + x[:, 1] + x[:, 2])


@pytest.mark.parametrize("shape", [(0, 4), (3, 5), (4,)])
def test_a_dictionary_that_does_not_fit_is_refused(shape):
    with pytest.raises(ValueError, match=r"shape \(entries, 4\)"):
        vsa.cleanup(torch.ones(2, 4), torch.ones(shape))
