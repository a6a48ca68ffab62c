"""The blocks of sequence models: plain, and in superposition to a growing extent.

MIMONets, section 4.2 and figure 3. All share their parameters' names and shapes.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mimonets.attention.modules import Attention, FavorS
from mimonets.models.factored_streams import FactoredStreams, Normed
from mimonets.models.sequence import TransformerConfig, start_as_gpt2

# b batch   g groups   m, n the two stream axes   t tokens   e embedding   h heads   d head size


class Block(nn.Module):
    r"""Attention and an MLP, each behind a layer norm and around a skip connection.

    .. math:: y = x + W_o \, \mathrm{attention}(W_{qkv} \, \mathrm{norm}(x)), \qquad
        z = y + \mathrm{MLP}(\mathrm{norm}(y))

    This one computes everything per input: x is (..., t, e). For ``superpose="attention"`` only the
    attention passed in is different: it works on a grid of streams.

    Warm-ups run every input alone in its stream, bound as ever and bundled with no other: through
    features with ``warm_up="solo"``, through a softmax with ``warm_up="exact"``.
    """

    recompute = False  # attention again in the backward pass, instead of keeping what it made

    def __init__(self, config: TransformerConfig, attention: Attention) -> None:
        super().__init__()
        self.heads = config.heads
        dropout = config.dropout if config.style == "ours" else 0.0
        inner = config.heads * config.head_dim
        self.norm1 = nn.LayerNorm(config.dim)
        self.to_q = nn.Linear(config.dim, inner)
        self.to_kv = nn.Linear(config.dim, 2 * inner)
        self.attention = attention
        self.out = nn.Linear(inner, config.dim)
        self.norm2 = nn.LayerNorm(config.dim)
        self.mlp = nn.Sequential(
            nn.Linear(config.dim, config.hidden_dim),
            nn.ReLU() if config.activation == "relu" else nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(config.hidden_dim, config.dim),
        )
        self.dropout = nn.Dropout(dropout)
        if config.style == "gpt2":
            start_as_gpt2(self, config)

    def forward(self, x: Tensor, mask: Tensor | None, warm_up: str | None = None) -> Tensor:
        """Map (..., t, e) to itself; mask: (..., t)."""
        normed = self.norm1(x)
        x = x + self.attend(normed, normed, mask, warm_up)
        return self.feed_forward(x)

    def attend(
        self, for_q: Tensor, for_kv: Tensor, mask: Tensor | None, warm_up: str | None = None
    ) -> Tensor:
        """Project, attend and join the heads: (..., t, e) -> (..., t, e)."""
        q = self.split_heads(self.to_q(for_q))
        k, v = (self.split_heads(x) for x in self.to_kv(for_kv).chunk(2, dim=-1))
        attention = self.attention if warm_up is None else getattr(self.attention, warm_up)
        if self.recompute and self.training:
            answers = checkpoint(attention, q, k, v, mask, use_reentrant=False)
        else:
            answers = attention(q, k, v, mask)  # ... h t d
        return self.dropout(self.out(answers.transpose(-3, -2).flatten(-2)))

    def feed_forward(self, x: Tensor) -> Tensor:
        """Apply the MLP around its skip connection."""
        return x + self.dropout(self.mlp(self.norm2(x)))

    def split_heads(self, x: Tensor) -> Tensor:
        """(..., t, h d) -> (..., h, t, d)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)


class SuperposedMLPBlock(Block):
    r"""Attention, its output projection and the MLP in superposition ("attention+mlp").

    The skip connection superposes the M inputs of each n with embedding keys, and the same keys
    retrieve them after the MLP:

    .. math:: y^{(n)} = \sum_m x^{(m,n)} \odot \tilde a^{(m,n)} + W_o \bar S^{(n)}, \qquad
        z^{(m,n)} = \bigl(y^{(n)} + \mathrm{MLP}(\mathrm{norm}(y^{(n)}))\bigr)
            \odot \tilde a^{(m,n)}

    The attention passed in must normalise jointly over m.

    From the second block on, all m come from one :math:`z^{(n)}` of the block before, so the sum is
    :math:`z^{(n)} \odot \sum_m \tilde a^{(m,n)} \odot \tilde b^{(m,n)}`, which is zero in half of
    the entries at M = 2 and in 3/8 of them at M = 4.

    Args:
        embedding_keys: bipolar, (m, n, e); frozen, and saved with the model.
    """

    embedding_keys: Tensor

    def __init__(
        self, config: TransformerConfig, attention: Attention, embedding_keys: Tensor
    ) -> None:
        super().__init__(config, attention)
        self.register_buffer("embedding_keys", embedding_keys)

    def forward(self, x: Tensor, mask: Tensor | None, warm_up: str | None = None) -> Tensor:
        """Map (g, m, n, t, e) to itself; mask: (g, m, n, t)."""
        keys = self.keys_of(x)
        attended = self.attend(*self.sources(self.norm1(x), mask, warm_up), mask, warm_up)
        if warm_up is not None:  # the MLP runs once per stream
            return self.feed_forward(x * keys + attended) * keys
        bundle = self.bundle(x, mask, dim=1)  # g n t e
        return self.feed_forward(bundle + attended).unsqueeze(1) * keys

    def forward_factored(self, x: Tensor | FactoredStreams, mask: Tensor | None) -> FactoredStreams:
        """Do what ``forward`` does, without writing the streams down; inference only."""
        if isinstance(x, Tensor):
            bundle = self.bundle(x, mask, dim=1)
            attended = self.attend(*self.sources(self.norm1(x), mask), mask)
            keys = self.keys_of(x).squeeze(-2)
        else:
            m, n = x.keys.shape[:2]
            keys = self.embedding_keys[:m, :n]
            bundle = x.bundle(keys, mask)
            attended = self.attend_factored(x.normed(self.norm1, mask), mask, keys)
        return FactoredStreams(self.feed_forward(bundle + attended), keys)

    def sources(
        self, normed: Tensor, mask: Tensor | None, warm_up: str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Give what queries, and what keys and values are projected from: (g, m, n, t, e)."""
        return normed, normed

    def attend_factored(self, normed: Normed, mask: Tensor | None, keys: Tensor) -> Tensor:
        """Attend to streams of which only the norms are known: (g, n, t, e)."""
        attention = cast(FavorS, self.attention)
        m, n = keys.shape[:2]
        stream_keys = attention.stream_keys[:m, :n].flatten(2)  # m n i
        q = normed.project(self.to_q, stream_keys, sum_over_m=True)  # n g t i
        kv = normed.project(self.to_kv, stream_keys.repeat(1, 1, 2), sum_over_m=False)
        q = self.split_heads(q.transpose(0, 1))
        k, v = (self.split_heads(x) for x in kv.transpose(0, 1).chunk(2, dim=-1))
        answers = attention.bundled(q, k, v, mask)
        return self.out(answers.transpose(-3, -2).flatten(-2))

    def bundle(self, x: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Bind real tokens to their embedding keys and add up along m (1) or n (2)."""
        keys = self.keys_of(x)
        if mask is not None:
            x = x.masked_fill(~mask.unsqueeze(-1), 0.0)
        total = x.select(dim, 0) * keys.select(dim - 1, 0)
        for index in range(1, x.shape[dim]):  # one term at a time: no bound copy of all of x
            total = torch.addcmul(total, x.select(dim, index), keys.select(dim - 1, index))
        return total

    def keys_of(self, x: Tensor) -> Tensor:
        """Return the keys of the grid that x has, (m, n, 1, e); a sub-grid uses the first ones."""
        m, n = x.shape[1:3]
        return self.embedding_keys[:m, :n].unsqueeze(-2).to(x.dtype)


class FullySuperposedBlock(SuperposedMLPBlock):
    r"""Everything in superposition, the K/Q/V projections too ("attention+mlp+qkv").

    Beyond the paper, which names this as the next saving. Inputs are bound to their embedding keys
    and bundled *before* they are projected, queries over m, keys and values over n:

    .. math:: q^{(n)} = W_q \sum_t \mathrm{norm}(x^{(t,n)}) \odot \tilde a^{(t,n)}, \qquad
        (k, v)^{(m)} = W_{kv} \sum_w \mathrm{norm}(x^{(m,w)}) \odot \tilde a^{(m,w)}

    Queries and keys of stream (m, n) meet in :math:`\langle k^{(m)}, q^{(n)} \rangle`, where all
    other pairs carry independent random signs. What is lost: the projections act on *bound* inputs,
    so stream (m, n) sees the metric :math:`\mathrm{diag}(\tilde a) W_k^T W_q \mathrm{diag}(\tilde
    a)` instead of :math:`W_k^T W_q`. A logit that compares an entry with itself survives, one that
    compares different entries gets a random sign per stream. The attention keys of the head
    dimension are not needed: nothing is separated between projection and attention.

    The attention passed in must take bundled q (g, n, ...) and k, v (g, m, ...).
    """

    def sources(
        self, normed: Tensor, mask: Tensor | None, warm_up: str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Bundle over m, (g, n, t, e), and over n, (g, m, t, e); in a warm-up only bind."""
        if warm_up is None:
            return self.bundle(normed, mask, dim=1), self.bundle(normed, mask, dim=2)
        bound = normed * self.keys_of(normed)
        return bound, bound

    def attend_factored(self, normed: Normed, mask: Tensor | None, keys: Tensor) -> Tensor:
        """Bundle norms, project and attend: (g, n, t, e)."""
        return self.attend(normed.bundle_over_m(keys), normed.bundle_over_n(keys), mask)
