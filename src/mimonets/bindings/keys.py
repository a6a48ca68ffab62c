"""Bind every pixel to the key of its stream and add the streams up. MIMONets, section 3 (PWHRR).

Binding with a fixed key is a matrix product over the feature maps, so binding N inputs and adding
them up is one 1x1 convolution from N * D to D feature maps: one GEMM, no intermediate of N times
the feature map, and nothing an exporter stumbles over. Copies of an input cost nothing either:
their matrices are added before, since (A + B) x = A x + B x.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from mimonets._device import has_channels_last, laid_out_like
from mimonets.bindings.binding import Binding, BindingSettings, KeyName
from mimonets.vsa import (
    bipolar_keys,
    circulant,
    gaussian_keys,
    matrix_keys,
    similarity,
    slot_keys,
    stream_assignment,
    unitary_keys,
)

START_NOISE = 0.1  # of matrices that start near the identity, relative to random ones

# g groups   a active inputs   s streams   d feature maps   h, w position


class PositionBinding(Binding):
    r"""Superpose the inputs of each group, position by position.

    .. math:: s_{:,h,w} = \sum_k A^{(k)} \, x^{(k \bmod A)}_{:,h,w}

    where stream k holds a copy of input k mod A and A^(k) is the matrix of its key. Subclasses say
    how keys are drawn and how a key becomes a matrix.

    Args:
        stream_keys: one key per stream, (s, ...).
        trainable: whether the optimiser may move the keys. Frozen keys are saved all the same.
    """

    uses = frozenset(
        {
            *("stream_keys", "trainable_keys", "identity_start"),
            *("trunk_start", "readout", "unbinding_relu"),
        }
    )
    key_names: ClassVar[Mapping[KeyName, Callable[..., Tensor]]]  # and how they are drawn

    def __init__(self, stream_keys: Tensor, *, trainable: bool = True) -> None:
        super().__init__()
        self.stream_keys = nn.Parameter(stream_keys, requires_grad=trainable)
        self.num_streams = len(stream_keys)

    @classmethod
    def make(cls, settings: BindingSettings, generator: Generator | None = None) -> Self:
        """Draw a key per stream."""
        name = settings.stream_keys
        draw = next(iter(cls.key_names.values())) if name is None else cls.key_names[name]
        keys = draw(settings.num_streams, settings.bound_maps, generator=generator)
        return cls(keys, trainable=settings.trainable_keys)

    def forward(self, x: Tensor, active_streams: int | None = None) -> Tensor:
        """Bind and bundle: (g, a, d, h, w) -> (g, d, h, w)."""
        active = x.shape[1]
        matrices = self.as_matrices(self._bundled_keys(active))  # a d d
        weight = matrices.transpose(0, 1).flatten(1)  # d (a d)
        if has_channels_last(x):
            maps = x.permute(0, 3, 4, 1, 2).flatten(3).permute(0, 3, 1, 2)
        else:
            maps = x.flatten(1, 2)
        return F.conv2d(maps, weight[:, :, None, None])

    def join_stacked(self, x: Tensor, active: int, period: int) -> Tensor:
        """Bind and bundle maps that lie one below the other, ``period`` rows apart: (g, d, r, w).

        One convolution, whose kernel takes the same row of every input.
        """
        matrices = self.as_matrices(self._bundled_keys(active))  # a d d
        return F.conv2d(x, matrices.permute(1, 2, 0)[..., None], dilation=(period, 1))

    def join_alone(self, x: Tensor, active_streams: int | None = None) -> Tensor:
        """Bind, and bundle nothing: (g, a, d, h, w) -> (g a, d, h, w)."""
        matrices = self.as_matrices(self._bundled_keys(x.shape[1]))  # a d d
        bound = torch.einsum("aij,gajhw->gaihw", matrices, x).flatten(0, 1)
        return laid_out_like(x, bound)

    def as_matrices(self, keys: Tensor) -> Tensor:
        """Turn keys into the matrices that bind with them: (a, ...) -> (a, d, d)."""
        raise NotImplementedError

    def penalty(self) -> Tensor:
        r"""Measure how far the stream keys are from orthonormal. MIMONets, appendix B.3.

        .. math:: \frac{1}{\binom{N}{2}} \sum_{i<j} \Bigl(\frac{\langle a^{(i)}, a^{(j)} \rangle}
            {\|a^{(i)}\| \|a^{(j)}\|}\Bigr)^2 + \frac{1}{N} \sum_i (\|a^{(i)}\| - 1)^2

        without the paper's factor :math:`\mu`, which belongs to the training recipe.
        """
        keys = self._keys_as_vectors()
        pairs = similarity(keys, keys).triu(diagonal=1).square().sum()
        lengths = (keys.norm(dim=1) - 1).square().mean()
        return pairs / max(1, math.comb(self.num_streams, 2)) + lengths

    def _keys_as_vectors(self) -> Tensor:
        """Return the keys as vectors whose norm is 1 when binding preserves lengths."""
        # An isometry of d dimensions has Frobenius norm sqrt(d), and d signs have it too.
        return self.stream_keys.flatten(1) / math.sqrt(self.stream_keys.shape[-1])

    def _bundled_keys(self, active: int) -> Tensor:
        """Add up the keys of the streams that carry the same input: (s, ...) -> (a, ...)."""
        keys = self.stream_keys
        if active == self.num_streams:
            return keys
        assignment = stream_assignment(active, self.num_streams, keys.device)
        return keys.new_zeros(active, *keys.shape[1:]).index_add(0, assignment, keys)


def unit_bipolar_keys(num_streams: int, dim: int, *, generator: Generator | None) -> Tensor:
    """Draw (s, d) keys of signs, scaled to norm 1."""
    return bipolar_keys(num_streams, dim, generator=generator) / dim**0.5


class HRRBinding(PositionBinding):
    r"""Bind by circular convolution with vector keys (s, d), the paper's choice.

    .. math:: (a^{(k)} \odot x^{(k)})_{:,h,w} = a^{(k)} \circledast x^{(k)}_{:,h,w}
    """

    summary = "circular convolution with a key per stream"
    key_names: ClassVar = {
        "gaussian": gaussian_keys,
        "unitary": unitary_keys,
        "bipolar": unit_bipolar_keys,
    }

    def as_matrices(self, keys: Tensor) -> Tensor:
        """Write circular convolution as a matrix."""
        return circulant(keys)

    def _keys_as_vectors(self) -> Tensor:
        return self.stream_keys


class MatrixBinding(PositionBinding):
    r"""Bind by matrix product with matrix keys (s, d, d); MBAT in the paper.

    .. math:: (A^{(k)} \odot x^{(k)})_{:,h,w} = A^{(k)} x^{(k)}_{:,h,w}
    """

    summary = "a matrix per stream"
    key_names: ClassVar = {"gaussian": matrix_keys, "slots": slot_keys}

    @classmethod
    def make(cls, settings: BindingSettings, generator: Generator | None = None) -> Self:
        """Draw a matrix per stream; with ``identity_start`` near the identity divided by N."""
        binding = super().make(settings, generator)
        if settings.identity_start:
            # The sum over all streams is about the identity: slow mode starts as the network was.
            keys = binding.stream_keys.data
            identity = torch.eye(keys.shape[-1]).to(keys)
            binding.stream_keys.data = (identity + START_NOISE * keys) / settings.num_streams
        return binding

    @classmethod
    def setting_problems(cls, settings: BindingSettings) -> list[str]:
        """Refuse slots where a stream would have no feature map of its own."""
        maps = settings.bound_maps
        if settings.stream_keys != "slots" or maps is None or maps >= settings.num_streams:
            return []
        return [
            f"stream_keys='slots' needs a feature map per stream, and {maps} are too few for "
            f"{settings.num_streams}: raise initial_width, or width with bind_after_stage."
        ]

    def as_matrices(self, keys: Tensor) -> Tensor:
        """Return the keys: they are the matrices."""
        return keys


class HadamardBinding(PositionBinding):
    r"""Bind by the element-wise product with vector keys (s, d), usually signs.

    .. math:: (a^{(k)} \odot x^{(k)})_{:,h,w} = a^{(k)} \odot x^{(k)}_{:,h,w}

    Cheap: one product per number instead of D.
    """

    summary = "a key of signs per stream"
    key_names: ClassVar = {"bipolar": bipolar_keys}

    @classmethod
    def make(cls, settings: BindingSettings, generator: Generator | None = None) -> Self:
        """Draw keys of signs, which stay as they are: between -1 and 1 is nothing to train."""
        return super().make(replace(settings, trainable_keys=False), generator)

    def forward(self, x: Tensor, active_streams: int | None = None) -> Tensor:
        """Bind and bundle: (g, a, d, h, w) -> (g, d, h, w)."""
        keys = self._bundled_keys(x.shape[1])  # a d
        return laid_out_like(x, (x * keys[:, :, None, None]).sum(dim=1))

    def join_stacked(self, x: Tensor, active: int, period: int) -> Tensor:
        """Bind and bundle maps that lie one below the other: (g, d, r, w) -> (g, d, h, w)."""
        keys = self._bundled_keys(active).T[:, None, :, None]  # d 1 a 1
        return F.conv2d(x, keys, dilation=(period, 1), groups=len(keys))

    def as_matrices(self, keys: Tensor) -> Tensor:
        """Write the product with a key as a diagonal matrix."""
        return torch.diag_embed(keys)
