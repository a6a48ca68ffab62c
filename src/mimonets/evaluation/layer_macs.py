"""What each kind of layer costs, from the shapes that go in and out.

A table by type of layer: teach it another one with ``layer_macs.register``. Third-party layers that
are not in it are counted by PyTorch's operator counter.
"""

from functools import singledispatch
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mimonets.attention.modules import BundledFavorS, FavorS, LinearAttention, SoftmaxAttention
from mimonets.bindings import PositionBinding
from mimonets.layers import ShiftedReLU, StreamBatchNorm, StreamUnbinding
from mimonets.models.baselines.datamux_former import GaussianMultiplexing
from mimonets.models.baselines.slimmable import SlimmableConv2d, SlimmableLinear
from mimonets.models.blocks import FullySuperposedBlock, SuperposedMLPBlock


class Macs(NamedTuple):
    """What one layer costs."""

    products: int = 0  # multiply-accumulates of convolutions and matrix products
    elements: int = 0  # what the paper counts beside them
    binding: int = 0  # Hadamard products with stream keys, which the paper books by themselves


@singledispatch
def layer_macs(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Macs:
    """Count one layer's own MACs from the shapes that go in and out; containers have none."""
    return Macs()


def has_formula(layer: nn.Module) -> bool:
    """Tell whether the table knows this type of layer.

    >>> has_formula(nn.Linear(2, 3)), has_formula(nn.Bilinear(2, 3, 4))
    (True, False)
    """
    return layer_macs.dispatch(type(layer)) is not layer_macs.dispatch(nn.Module)


def is_known(layer: nn.Module) -> bool:
    """Tell whether all that a layer computes itself is in the table: ours, and containers."""
    home = type(layer).__module__
    container = home == "torch.nn.modules.container"
    return has_formula(layer) or container or home.startswith("mimonets.")


def _convolution(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Macs:
    assert isinstance(layer.weight, Tensor)
    return Macs(output.numel() * layer.weight[0].numel())


for _conv in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
    layer_macs.register(_conv, _convolution)


@layer_macs.register
def _(layer: nn.MultiheadAttention, inputs: tuple[Tensor, ...], output: Tensor) -> Macs:
    q, k, v = inputs[:3]
    along = 1 if layer.batch_first and q.ndim == 3 else 0  # the axis of tokens
    t, s = q.shape[along], k.shape[along]
    count = q.numel() // (t * q.shape[-1])
    dim = layer.embed_dim
    projections = 2 * t * dim * dim + s * (k.shape[-1] + v.shape[-1]) * dim
    return Macs(count * (projections + 2 * t * s * dim), count * layer.num_heads * t * s)


@layer_macs.register
def _(layer: SlimmableConv2d, inputs: tuple[Tensor, ...], output: Tensor) -> Macs:
    return Macs(output.numel() * inputs[0].shape[1] * layer.weight[0, 0].numel())


@layer_macs.register
def _(layer: nn.Linear | SlimmableLinear, inputs: tuple[Tensor, ...], output: Tensor) -> Macs:
    return Macs(output.numel() * inputs[0].shape[-1])


@layer_macs.register
def _(layer: PositionBinding, inputs: tuple[Tensor, ...], output: Tensor) -> Macs:
    active, maps = inputs[0].shape[1:3]  # the 1x1 convolution from a * d to d maps
    return Macs(output.numel() * active * maps)


@layer_macs.register
def _(layer: StreamUnbinding, inputs: tuple[Tensor, ...], output: Tensor) -> Macs:
    return Macs(inputs[0].shape[:-1].numel() * layer.weight.numel())  # at every position


@layer_macs.register
def _(layer: SoftmaxAttention, inputs: tuple[Tensor, ...], output: Tensor) -> Macs:
    q = inputs[0]  # b h t d; scores and their product with v, all L x L of them
    return Macs(2 * q.numel() * q.shape[-2], q.shape[:-2].numel() * q.shape[-2] ** 2)


@layer_macs.register
def _(layer: LinearAttention, inputs: tuple[Tensor, ...], output: Tensor) -> Macs:
    q = inputs[0]  # b h t d
    return _linear_attention_macs(layer, q.shape[:-2].numel(), 1, 1, q.shape, joint=True)


@layer_macs.register
def _(layer: FavorS, inputs: tuple[Tensor, ...], output: Tensor) -> Macs:
    q = inputs[0]  # g m n h t d
    groups, m, n, heads = q.shape[:4]
    joint = layer.normalise == "joint"
    macs = _linear_attention_macs(layer, groups * heads, m, n, q.shape, joint=joint)
    return macs._replace(binding=(3 if joint else 4) * q.numel())  # q, k, v and, if separate, out


@layer_macs.register
def _(layer: BundledFavorS, inputs: tuple[Tensor, ...], output: Tensor) -> Macs:
    q, k = inputs[:2]  # g n h t d, g m h t d
    groups, n, heads = q.shape[:3]
    return _linear_attention_macs(layer, groups * heads, k.shape[1], n, q.shape, joint=True)


@layer_macs.register
def _(layer: SuperposedMLPBlock, inputs: tuple[Tensor, ...], output: Tensor) -> Macs:
    return Macs(binding=2 * inputs[0].numel())  # into the skip connection, and out again


@layer_macs.register
def _(layer: FullySuperposedBlock, inputs: tuple[Tensor, ...], output: Tensor) -> Macs:
    return Macs(binding=4 * inputs[0].numel())  # also for the queries, and for keys and values


@layer_macs.register
def _(layer: GaussianMultiplexing, inputs: tuple[Tensor, ...], output: Tensor) -> Macs:
    return Macs(binding=inputs[0].numel())


def _linear_attention_macs(
    layer: LinearAttention | FavorS | BundledFavorS,
    count: int,
    m: int,
    n: int,
    shape: torch.Size,
    *,
    joint: bool,
) -> Macs:
    """Count feature maps, A, A times phi(q) and the normalisers, ``count`` times."""
    tokens, dim = shape[-2:]
    features = layer.feature_map.num_features
    projection = getattr(layer.feature_map, "projection", None)
    maps = (m + n) * tokens * features * (0 if projection is None else dim)
    normalisers = 1 if joint else m
    summed = seen = tokens
    within = 0
    if layer.causal:
        chunk = layer.chunk_size
        sizes = [min(chunk, tokens - at) for at in range(0, tokens, chunk)]
        within = sum(m * n * size * size * (features + dim) for size in sizes)
        seen = tokens - sizes[0]  # the first chunk has nothing before it
        summed = tokens - sizes[-1]  # and nothing comes after the last
    sums = m * summed * features * (dim + 1)  # A and C
    reads = n * seen * features * (dim + normalisers)
    return Macs(count * (maps + sums + reads + within), count * (m + n) * tokens * features)


def _two_per_element(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Macs:
    return Macs(elements=2 * output.numel())


def _one_per_element(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Macs:
    return Macs(elements=inputs[0].numel())


for _norm in (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, StreamBatchNorm),
    *(nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
):
    layer_macs.register(_norm, _two_per_element)
for _activation_or_pooling in (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, ShiftedReLU, nn.ELU, nn.SELU, nn.CELU),
    *(nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardtanh, nn.Hardsigmoid),
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softmax, nn.LogSoftmax),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
):
    layer_macs.register(_activation_or_pooling, _one_per_element)
for _free in (
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.Embedding),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
):
    layer_macs.register(_free, lambda *_: Macs())
