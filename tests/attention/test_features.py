import math
import shutil
import warnings

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mimonets.attention import (
    DPFP,
    ReLUFeatures,
    SoftmaxFeatures,
    favor_s,
    linear_attention,
    orthogonal_projection,
    softmax_attention,
)

RANDOM = pytest.mark.parametrize("kind", [ReLUFeatures, SoftmaxFeatures])


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_directions_are_orthogonal_within_each_block():
    w = orthogonal_projection(17, 7, generator=rng()).double()
    for block in w.split(7):
        cosine = block / block.norm(dim=-1, keepdim=True)
        assert_close(cosine @ cosine.T, torch.eye(len(block)).double(), atol=1e-5, rtol=0)


def test_norms_of_directions_are_chi_distributed():
    dim = 8
    norms = orthogonal_projection(40_000, dim, generator=rng()).double().norm(dim=-1)
    mean = math.sqrt(2) * math.gamma((dim + 1) / 2) / math.gamma(dim / 2)
    # Four standard errors each; the squares are chi-squared with variance 2 D.
    assert norms.mean().item() == pytest.approx(mean, abs=4 * math.sqrt(dim - mean**2) / 200)
    squares = norms.square()
    assert squares.mean().item() == pytest.approx(dim, abs=4 * math.sqrt(2 * dim) / 200)
    assert squares.var().item() == pytest.approx(2 * dim, rel=0.1)


def test_directions_are_uniform_in_sign_and_place():
    """QR without its signs fixed would favour one side."""
    w = orthogonal_projection(30_000, 3, generator=rng()).double()
    assert_close(w.mean(0), torch.zeros(3).double(), atol=4 / math.sqrt(30_000), rtol=0)
    assert_close(w.T @ w / len(w), torch.eye(3).double(), atol=0.05, rtol=0)


@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_softmax_features_are_unbiased_for_the_softmax_kernel(scale):
    dim, draws = 6, 200_000
    q, k = (scale * torch.randn(4, dim, generator=rng(i), dtype=torch.float64) for i in (1, 2))
    phi = SoftmaxFeatures(dim, draws, generator=rng())
    products = phi(q) * phi(k) * draws  # each feature is an estimate
    # Five standard errors of independent draws; orthogonal ones have less.
    tolerance = 5 * products.std(dim=-1) / math.sqrt(draws)
    error = products.mean(dim=-1) - torch.exp((q * k).sum(-1) / math.sqrt(dim))
    assert (error.abs() < tolerance).all()


def test_orthogonal_features_have_less_variance_than_independent_ones():
    dim = 8
    q, k = (0.7 * torch.randn(dim, generator=rng(i)) for i in (1, 2))
    phi = SoftmaxFeatures(dim, dim)

    def variance(draw) -> float:
        estimates = []
        for seed in range(2000):
            phi.projection.copy_(draw(seed))
            estimates.append(phi(q) @ phi(k))
        return float(torch.stack(estimates).var())

    orthogonal = variance(lambda seed: orthogonal_projection(dim, dim, generator=rng(seed)))
    independent = variance(lambda seed: torch.randn(dim, dim, generator=rng(seed)))
    assert orthogonal < 0.95 * independent


def test_relu_features_have_the_kernel_of_the_papers_theorem():
    """Appendix C.2: E[ReLU(w x) ReLU(w y)] = (<x, y> + |x| |y| g(rho)) / 4."""
    dim = 6
    x, y = (torch.randn(5, dim, generator=rng(i), dtype=torch.float64) for i in (1, 2))
    phi = ReLUFeatures(dim, 100_000, generator=rng(), epsilon=0.0)
    norms = x.norm(dim=-1) * y.norm(dim=-1)
    rho = (x * y).sum(-1) / norms
    root = (1 - rho**2).sqrt()
    g = 2 / math.pi * (root + rho.abs() * torch.atan(rho.abs() / root))
    expected = (rho + g) * norms / 4
    assert_close((phi(x) * phi(y)).sum(-1) * math.sqrt(dim), expected, rtol=0.03, atol=0.01)


def test_relu_features_are_their_equation():
    x = torch.randn(3, 5, 7, generator=rng(), dtype=torch.float64)
    phi = ReLUFeatures(7, 11, generator=rng(), epsilon=0.01)
    w = phi.projection.double()
    assert_close(phi(x), ((x @ w.T).relu() / 7**0.25 + 0.01) / math.sqrt(11))
    assert (phi(x) > 0).all()


def test_softmax_features_are_their_equation():
    x = torch.randn(3, 5, 7, generator=rng(), dtype=torch.float64)
    phi = SoftmaxFeatures(7, 11, generator=rng())
    w = phi.projection.double()
    exponent = x @ w.T / 7**0.25 - x.square().sum(-1, keepdim=True) / (2 * math.sqrt(7))
    assert_close(phi(x), exponent.exp() / math.sqrt(11))


@pytest.mark.parametrize("nu", [1, 2, 3])
def test_dpfp_is_its_equation(nu):
    x = torch.randn(2, 5, generator=rng())
    phi = DPFP(5, nu)
    u = [[max(a, 0) for a in row] + [max(-a, 0) for a in row] for row in x.tolist()]
    expected = [
        [row[i] * row[(i - shift) % 10] for shift in range(1, nu + 1) for i in range(10)]
        for row in u
    ]
    assert_close(phi(x), torch.tensor(expected))
    assert phi(x).shape[-1] == phi.num_features == 2 * 5 * nu


@pytest.mark.parametrize("phi", [SoftmaxFeatures(7, 11, generator=rng()), DPFP(7, 2)], ids=str)
def test_the_scale_of_keys_and_queries_cancels(phi):
    """Up to one factor per query, phi(q) . phi(k) is what the equation says."""
    q, k = (torch.randn(3, n, 5, 7, generator=rng(n), dtype=torch.float64) for n in (1, 2))
    phi_k, peak = phi.keys(k)
    scaled = phi.queries(q, peak).unsqueeze(-3) @ phi_k.mT.unsqueeze(-4)
    plain = phi(q).unsqueeze(-3) @ phi(k).mT.unsqueeze(-4)
    ratio = scaled.movedim(-2, 1).flatten(2) / plain.movedim(-2, 1).flatten(2).clamp_min(1e-300)
    seen = plain.movedim(-2, 1).flatten(2) > 0
    for row, used in zip(ratio.flatten(0, 1), seen.flatten(0, 1), strict=True):
        assert_close(row[used], row[used][:1].expand_as(row[used]))


@RANDOM
def test_redrawing_is_deterministic_per_generator(kind):
    phi = kind(7, 11, generator=rng(1))
    first = phi.projection.clone()
    phi.redraw(rng(2))
    assert not torch.equal(phi.projection, first)
    phi.redraw(rng(1))
    assert torch.equal(phi.projection, first)
    before = phi.projection
    phi.redraw()
    assert phi.projection is before  # in place: compiled and exported code sees it


@RANDOM
def test_a_checkpoint_remembers_the_directions(kind):
    one, other = kind(7, 11, generator=rng(1)), kind(7, 11, generator=rng(2))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.projection, other.projection)
    assert not list(one.parameters())


@RANDOM
def test_maps_can_be_built_without_memory(kind):
    with torch.device("meta"):
        phi = kind(7, 11)
    assert phi.projection.device.type == "meta"
    assert phi(torch.empty(2, 7, device="meta")).shape == (2, 11)


def performer_pytorch():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("performer_pytorch.performer_pytorch")


def test_relu_features_equal_performer_pytorch():
    """The package leaves out the factor 1 / sqrt(R), which normalising takes out anyway."""
    performer = performer_pytorch()
    phi, x = ReLUFeatures(7, 11, generator=rng()), torch.randn(2, 2, 5, 7, generator=rng(1))
    expected = performer.generalized_kernel(x, projection_matrix=phi.projection)
    assert_close(phi(x) * math.sqrt(11), expected)


def test_softmax_features_equal_performer_pytorch_up_to_its_shift():
    """The package subtracts the maximum of w x only, and adds eps to every feature."""
    performer = performer_pytorch()
    phi, x = SoftmaxFeatures(7, 11, generator=rng()), torch.randn(2, 2, 5, 7, generator=rng(1))
    for is_query, over in ((True, (-1,)), (False, (-2, -1))):
        expected = performer.softmax_kernel(
            x, projection_matrix=phi.projection, is_query=is_query, eps=0.0
        )
        shift = phi.project(x).amax(dim=over, keepdim=True)
        assert_close(phi(x) * torch.exp(-shift), expected)


def test_attention_with_softmax_features_equals_performer_pytorch():
    performer = performer_pytorch()
    phi = SoftmaxFeatures(7, 11, generator=rng())
    q, k, v = (torch.randn(2, 2, 5, 7, generator=rng(i)) for i in range(3))
    mapped = [
        performer.softmax_kernel(x, projection_matrix=phi.projection, is_query=is_query, eps=0.0)
        for x, is_query in ((q, True), (k, False))
    ]
    assert_close(linear_attention(q, k, v, phi), performer.linear_attention(*mapped, v))


def test_many_softmax_features_come_close_to_softmax_attention():
    q, k, v = (torch.randn(1, 1, 6, 4, generator=rng(i)) for i in range(3))
    phi = SoftmaxFeatures(4, 50_000, generator=rng())
    assert_close(linear_attention(q, k, v, phi), softmax_attention(q, k, v), atol=0.05, rtol=0.0)


class Everything(nn.Module):
    """Each attention of this room on the same inputs."""

    def __init__(self) -> None:
        super().__init__()
        maps = [ReLUFeatures(6, 8), SoftmaxFeatures(6, 8), DPFP(6, 2)]
        self.maps = nn.ModuleList(maps)

    def forward(self, q, k, v, keys, mask):
        one, one_mask = [x[:, 0, 0] for x in (q, k, v)], mask[:, 0, 0]
        return [
            *(linear_attention(*one, phi, mask=one_mask) for phi in self.maps),
            favor_s(q, k, v, keys, self.maps[0], mask=mask),
            favor_s(q, k, v, keys, self.maps[2], normalise="joint"),
            favor_s(q, k, v, keys, self.maps[1], causal=True, chunk_size=3),
            softmax_attention(*one, mask=one_mask),
            softmax_attention(*one, causal=True),
        ]


def everything():
    q, k, v = (torch.randn(2, 2, 2, 1, 5, 6, generator=rng(i)) for i in range(3))
    keys = torch.randn(2, 2, 6, generator=rng(3)).sign()
    mask = torch.rand(2, 2, 2, 5, generator=rng(4)) < 0.7
    return Everything(), (q, k, v, keys, mask)


def test_everything_exports():
    module, inputs = everything()
    assert_close(torch.export.export(module, inputs).module()(*inputs), module(*inputs))


def test_everything_traces_in_one_graph_with_its_gradients():
    module, (q, k, v, keys, mask) = everything()

    def loss(function, *inputs):
        inputs = [x.clone().requires_grad_() for x in inputs]
        total = sum(out.square().sum() for out in function(*inputs, keys, mask))
        return torch.autograd.grad(total, inputs)

    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert_close(loss(compiled, q, k, v), loss(module, q, k, v), atol=1e-4, rtol=1e-4)


@pytest.mark.slow  # a C++ compiler at work
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # inductor's own import
def test_favor_s_compiles_to_the_same_numbers():
    _, (q, k, v, keys, mask) = everything()
    phi = SoftmaxFeatures(6, 8, generator=rng())

    def attention(q, k, v):
        return favor_s(q, k, v, keys, phi, mask=mask)

    assert_close(torch.compile(attention, fullgraph=True)(q, k, v), attention(q, k, v))


def test_errors_say_what_fits():
    with pytest.raises(ValueError, match=r"0 directions in 7 dimensions.*at least 1"):
        ReLUFeatures(7, 0)
    with pytest.raises(ValueError, match=r"nu=0 does not fit.*take nu from 1 to 13"):
        DPFP(7, 0)
    with pytest.raises(ValueError, match=r"dimension 7.*\(2, 5\).*dim=5"):
        DPFP(7, 1)(torch.zeros(2, 5))
