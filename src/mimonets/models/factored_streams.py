r"""Streams that differ only by their keys: what a MIMOFormer carries from block to block.

From the second block on, all M streams of a superposition are one tensor times M keys,
:math:`x^{(m,n)} = z^{(n)} \odot p^{(m,n)}`. Their norms, bundles, projections and averages follow
from z and from a few numbers per token, without ever writing the M x N streams down. The answers
are the same up to rounding, and memory traffic is a fraction.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

# g groups   m, n the two stream axes   t tokens   e embedding   i heads times head size


class Normed(NamedTuple):
    r"""The layer norms of all streams, as what is needed to add them up.

    .. math:: \mathrm{norm}(x^{(m,n)}) = \gamma \odot \bigl(r^{(m,n)} z^{(n)} \odot p^{(m,n)}
        - s^{(m,n)}\bigr) + \beta, \qquad r = 1 / \sigma, \quad s = \mu / \sigma

    Padded tokens have r = s = weight = 0, so that they enter no sum.
    """

    z: Tensor  # (g, n, t, e)
    keys: Tensor  # p, (m, n, e)
    scale: Tensor  # r, (g, m, n, t)
    shift: Tensor  # s, (g, m, n, t)
    weight: Tensor  # 1 for real tokens, else 0; (g, m, n, t)
    gamma: Tensor  # (e,)
    beta: Tensor  # (e,)

    def bundle_over_m(self, keys: Tensor) -> Tensor:
        """Bind every stream to ``keys`` (m, n, e) and add up along m: (g, n, t, e)."""
        factor = torch.einsum("gmnt,mne->gnte", self.scale, self.keys * keys * self.gamma)
        return torch.addcmul(self._rest("gmnt,mne->gnte", keys), self.z, factor)

    def bundle_over_n(self, keys: Tensor) -> Tensor:
        """Bind every stream to ``keys`` (m, n, e) and add up along n: (g, m, t, e)."""
        totals = [part.clone() for part in self._rest("gmnt,mne->mgte", keys)]
        signs = self.keys * keys * self.gamma
        for n in range(keys.shape[1]):
            for m, total in enumerate(totals):
                scaled = self.z[:, n] * self.scale[:, m, n, :, None]
                total.addcmul_(scaled, signs[m, n])
        return torch.stack(totals, dim=1)

    def _rest(self, sum_over: str, keys: Tensor) -> Tensor:
        """Add up what does not depend on z."""
        shifts = torch.einsum(sum_over, self.shift, keys * -self.gamma)
        return shifts + torch.einsum(sum_over, self.weight, keys * self.beta)

    def project(self, layer: nn.Linear, keys: Tensor, sum_over_m: bool) -> Tensor:
        r"""Project every stream, bind the result to ``keys`` (m, n, i) and add up along m or n.

        .. math:: \sum_m a^{(m,n)} \odot (W \, \mathrm{norm}(x^{(m,n)}) + b)

        Both sets of signs go into the weights, so that a product adds to the sum at once.

        Returns:
            (n, g, t, i) if ``sum_over_m``, else (m, g, t, i).
        """
        groups, m_streams, n_streams, tokens = self.scale.shape
        weight = layer.weight.mT  # e i
        constant = self.beta @ weight + (0.0 if layer.bias is None else layer.bias)
        per_token = "gmnt,mni->ngti" if sum_over_m else "gmnt,mni->mgti"
        total = torch.einsum(per_token, self.shift, keys * -(self.gamma @ weight))
        total = (total + torch.einsum(per_token, self.weight, keys * constant)).flatten(1, 2)
        traced = torch.compiler.is_compiling()  # a graph has no views, and would keep all weights
        parts = [part.clone() for part in total] if traced else list(total)  # (g t) i
        for n in range(n_streams):
            for m in range(m_streams):
                scaled = (self.z[:, n] * self.scale[:, m, n, :, None]).flatten(0, 1)
                signs, part = self.keys[m, n] * self.gamma, parts[n if sum_over_m else m]
                if traced:
                    part.addcmul_((scaled * signs) @ weight, keys[m, n])
                else:
                    part.addmm_(scaled, weight * signs.unsqueeze(-1) * keys[m, n])
        return (torch.stack(parts) if traced else total).unflatten(1, (groups, tokens))


class FactoredStreams(NamedTuple):
    """All streams of a grid: z (g, n, t, e) times keys (m, n, e)."""

    z: Tensor
    keys: Tensor

    def bundle(self, keys: Tensor, mask: Tensor | None) -> Tensor:
        """Bind the real tokens of every stream to other keys and add up along m: (g, n, t, e)."""
        both = self.keys * keys
        if mask is None:
            return self.z * both.sum(dim=0).unsqueeze(-2)
        return self.z * torch.einsum("gmnt,mne->gnte", mask.to(self.z.dtype), both)

    def normed(self, norm: nn.LayerNorm, mask: Tensor | None) -> Normed:
        """Apply a layer norm to every stream; all share the mean of their squares."""
        size = self.z.shape[-1]
        mean = torch.einsum("gnte,mne->gmnt", self.z, self.keys) / size
        square = self.z.square().mean(dim=-1).unsqueeze(1)  # g 1 n t
        scale = (square - mean.square() + norm.eps).rsqrt()
        weight = torch.ones_like(scale) if mask is None else mask.to(scale.dtype)
        scale = scale * weight
        return Normed(self.z, self.keys, scale, scale * mean, weight, norm.weight, norm.bias)

    def pooled(self, norm: nn.LayerNorm, mask: Tensor | None) -> Tensor:
        """Average the norms of every stream over its real tokens: (g, m, n, e)."""
        normed = self.normed(norm, mask)
        count = normed.weight.sum(dim=-1, keepdim=True)  # g m n 1
        sums = torch.einsum("gmnt,gnte->gmne", normed.scale, self.z) * self.keys
        sums = norm.weight * (sums - normed.shift.sum(dim=-1, keepdim=True))
        return (sums + norm.bias * count) / count.clamp_min(1)

    def streams(self) -> Tensor:
        """Write all streams down: (g, m, n, t, e)."""
        return self.z.unsqueeze(1) * self.keys.unsqueeze(-2)
