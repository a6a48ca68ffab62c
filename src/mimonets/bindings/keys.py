"""Bind every pixel to the key of its stream and add the streams up. MIMONets, section 3 (PWHRR).

Binding with a fixed key is a matrix product over the feature maps, so binding N inputs and adding
them up is one 1x1 convolution from N * D to D feature maps: one GEMM, no intermediate of N times
the feature map, and nothing an exporter stumbles over. Copies of an input cost nothing either:
their matrices are added before, since (A + B) x = A x + B x.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimonets.vsa import circulant, similarity, stream_assignment

# g groups   a active inputs   s streams   d feature maps   h, w position


class PositionBinding(nn.Module):
    r"""Superpose the inputs of each group, position by position.

    .. math:: s_{:,h,w} = \sum_k A^{(k)} \, x^{(k \bmod A)}_{:,h,w}

    where stream k holds a copy of input k mod A and A^(k) is the matrix of its key. Subclasses say
    how a key becomes a matrix.

    Args:
        stream_keys: one key per stream, (s, ...).
        trainable: whether the optimiser may move the keys. Frozen keys are saved all the same.
    """

    def __init__(self, stream_keys: Tensor, *, trainable: bool = True) -> None:
        super().__init__()
        self.stream_keys = nn.Parameter(stream_keys, requires_grad=trainable)

    @property
    def num_streams(self) -> int:
        """How many keys there are."""
        return self.stream_keys.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """Bind and bundle: (g, a, d, h, w) -> (g, d, h, w)."""
        active = x.shape[1]
        matrices = self.as_matrices(self._bundled_keys(active))  # a d d
        weight = matrices.transpose(0, 1).flatten(1)  # d (a d)
        return F.conv2d(x.flatten(1, 2), weight[:, :, None, None])

    def solo(self, x: Tensor) -> Tensor:
        """Bind, and bundle nothing: every input alone in its streams, (g, a, d, h, w)."""
        matrices = self.as_matrices(self._bundled_keys(x.shape[1]))  # a d d
        return torch.einsum("aij,gajhw->gaihw", matrices, x)

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
        return self.stream_keys

    def _bundled_keys(self, active: int) -> Tensor:
        """Add up the keys of the streams that carry the same input: (s, ...) -> (a, ...)."""
        keys = self.stream_keys
        if active == self.num_streams:
            return keys
        assignment = stream_assignment(active, self.num_streams, keys.device)
        return keys.new_zeros(active, *keys.shape[1:]).index_add(0, assignment, keys)


class HRRBinding(PositionBinding):
    r"""Bind by circular convolution with vector keys (s, d), the paper's choice.

    .. math:: (a^{(k)} \odot x^{(k)})_{:,h,w} = a^{(k)} \circledast x^{(k)}_{:,h,w}
    """

    def as_matrices(self, keys: Tensor) -> Tensor:
        """Write circular convolution as a matrix."""
        return circulant(keys)


class MBATBinding(PositionBinding):
    r"""Bind by matrix product with matrix keys (s, d, d).

    .. math:: (A^{(k)} \odot x^{(k)})_{:,h,w} = A^{(k)} x^{(k)}_{:,h,w}
    """

    def as_matrices(self, keys: Tensor) -> Tensor:
        """Return the keys: they are the matrices."""
        return keys

    def _keys_as_vectors(self) -> Tensor:
        # An isometry of d dimensions has Frobenius norm sqrt(d).
        return self.stream_keys.flatten(1) / math.sqrt(self.stream_keys.shape[-1])


class HadamardBinding(PositionBinding):
    r"""Bind by the element-wise product with vector keys (s, d), usually signs.

    .. math:: (a^{(k)} \odot x^{(k)})_{:,h,w} = a^{(k)} \odot x^{(k)}_{:,h,w}

    Cheap: one product per number instead of D.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Bind and bundle: (g, a, d, h, w) -> (g, d, h, w)."""
        keys = self._bundled_keys(x.shape[1])  # a d
        return (x * keys[:, :, None, None]).sum(dim=1)

    def as_matrices(self, keys: Tensor) -> Tensor:
        """Write the product with a key as a diagonal matrix."""
        return torch.diag_embed(keys)

    def _keys_as_vectors(self) -> Tensor:
        return self.stream_keys / math.sqrt(self.stream_keys.shape[-1])
