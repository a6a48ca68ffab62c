"""Attention as modules: the parts that a block of a sequence model is built from."""

from typing import Any, Protocol

from torch import Tensor, nn

from mimonets.attention.favor_s import CHUNK_SIZE, Normalise, favor_s, favor_s_bundled
from mimonets.attention.features import FeatureMap
from mimonets.attention.linear import linear_attention
from mimonets.attention.softmax import softmax_attention
from mimonets.attention.solo import exact_solo, favor_solo

# b batch   g groups   m, n the two stream axes   h heads   t tokens   d head size


class Attention(Protocol):
    """Anything that mixes values: (..., h, t, d) three times, and a mask of real tokens.

    A warm-up of the models that use it is a method of its name, called alike: ``exact`` attends
    with a softmax, ``solo`` through features, both in every stream as if the others were empty.
    """

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Attend."""
        ...


class SoftmaxAttention(nn.Module):
    """The attention of a Transformer, on (b, h, t, d)."""

    def __init__(self, *, causal: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.causal = causal
        self.dropout = dropout  # of attention weights, while training

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within each sequence; mask: (b, t)."""
        dropout = self.dropout if self.training else 0.0
        return softmax_attention(q, k, v, mask=mask, causal=self.causal, dropout=dropout)


class LinearAttention(nn.Module):
    """The attention of a Performer, on (b, h, t, d)."""

    chunk_size = 128  # tokens that causal attention compares directly

    def __init__(self, feature_map: FeatureMap, *, causal: bool = False) -> None:
        super().__init__()
        self.feature_map = feature_map
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within each sequence; mask: (b, t)."""
        options: dict[str, Any] = {"causal": self.causal, "chunk_size": self.chunk_size}
        return linear_attention(q, k, v, self.feature_map, mask=mask, **options)

    def exact(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend with the softmax that the features approximate."""
        return softmax_attention(q, k, v, mask=mask, causal=self.causal)


class BundledFavorS(nn.Module):
    """FAVOR+S on queries, keys and values that were bundled before they were projected."""

    chunk_size = CHUNK_SIZE

    def __init__(
        self, feature_map: FeatureMap, *, causal: bool = False, damping: bool = True
    ) -> None:
        super().__init__()
        self.feature_map = feature_map
        self.causal = causal
        self.damping = damping

    @property
    def options(self) -> dict[str, Any]:
        """What all functions take."""
        return {"causal": self.causal, "damping": self.damping}

    def bundled(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend jointly; q: (g, n, h, t, d), k and v: (g, m, h, t, d), mask: (g, m, n, t)."""
        return favor_s_bundled(
            q, k, v, self.feature_map, mask=mask, chunk_size=self.chunk_size, **self.options
        )

    forward = bundled

    def solo(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend with every input, bound before, alone in its stream: all (g, m, n, h, t, d)."""
        keys = q.new_ones(*q.shape[1:3], q.shape[-1])
        return favor_solo(
            q, k, v, keys, self.feature_map, mask=mask, normalise="joint", **self.options
        )

    def exact(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend with a softmax, every input, bound before, alone in its stream."""
        return exact_solo(q, k, v, mask=mask, causal=self.causal)


class FavorS(BundledFavorS):
    """FAVOR+S on a grid of streams, (g, m, n, h, t, d), with arguments as :func:`favor_s`.

    Its stream keys are frozen, and saved with the model.
    """

    stream_keys: Tensor

    def __init__(
        self,
        stream_keys: Tensor,
        feature_map: FeatureMap,
        *,
        normalise: Normalise = "stream",
        causal: bool = False,
        damping: bool = True,
    ) -> None:
        super().__init__(feature_map, causal=causal, damping=damping)
        self.register_buffer("stream_keys", stream_keys)
        self.normalise: Normalise = normalise

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within each stream; mask: (g, m, n, t)."""
        options = {**self.options, "normalise": self.normalise, "chunk_size": self.chunk_size}
        return favor_s(q, k, v, self.stream_keys, self.feature_map, mask=mask, **options)

    def solo(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend with every input alone in its stream; (g, m, n, h, t, d), bound if joint."""
        options = {**self.options, "normalise": self.normalise}
        return favor_solo(q, k, v, self.stream_keys, self.feature_map, mask=mask, **options)

    def exact(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend with a softmax in every stream alone; (g, m, n, h, t, d), bound if joint."""
        answers = super().exact(q, k, v, mask)
        if self.normalise == "stream":
            return answers
        m, n = q.shape[1:3]
        keys = self.stream_keys.view(*self.stream_keys.shape[:2], -1, self.stream_keys.shape[-1])
        return answers * keys[:m, :n].unsqueeze(-2).to(v.dtype)
