"""DataMUX on sequences: the other network of MIMONets, table 3 and appendix F.

Murahari et al., "DataMUX: Data Multiplexing for Neural Networks", NeurIPS 2022.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from mimonets._config import size
from mimonets.attention.modules import SoftmaxAttention
from mimonets.models.blocks import Block
from mimonets.models.sequence import SequenceModel, TransformerConfig
from mimonets.vsa import check_active_streams, fold_streams, gaussian_keys, unfold_streams

# b batch   g groups   s streams   t tokens   e embedding   v vocabulary

DemuxName = Literal["index", "slots"]


@dataclass(frozen=True, kw_only=True)
class DataMUXFormerConfig(TransformerConfig):
    """DataMUX on sequences. Murahari et al., NeurIPS 2022."""

    num_streams: int = size(2)  # sequences per superposition; slots in their words
    demux: DemuxName = "index"  # a prefix place per stream, joined to every token; or a layer each


class GaussianMultiplexing(nn.Module):
    r"""Multiply the tokens of every stream by its key, and average.

    .. math:: x_t = \frac{1}{N} \sum_k a^{(k)} \odot x^{(k)}_t, \quad a^{(k)} \sim \mathcal{N}(0, I)

    The keys are frozen, and saved with the model.
    """

    stream_keys: Tensor

    def __init__(self, num_streams: int, dim: int, *, generator: Generator | None = None) -> None:
        super().__init__()
        keys = gaussian_keys(num_streams, dim, generator=generator) * dim**0.5
        self.register_buffer("stream_keys", keys)

    def forward(self, x: Tensor) -> Tensor:
        """Multiplex (g, s, t, e) -> (g, t, e)."""
        return (x * self.stream_keys.unsqueeze(1).to(x.dtype)).mean(dim=1)


class IndexDemultiplexing(nn.Module):
    r"""Join every token to what became of its stream's place in the prefix.

    .. math:: y^{(k)}_t = \mathrm{GELU}(W [h_t; p^{(k)}] + b)

    with one W for all streams. In front of its tokens, stream k has N special ones: its own index
    at place k, and padding elsewhere. They are multiplexed like all others, and the output at place
    k is :math:`p^{(k)}`.

    Causal attention shows the prefix to every token, but no token to the prefix: there
    :math:`p^{(k)}` is the same for all inputs, and all it says is which stream is asked for. If the
    prefix saw the tokens, each answer would know the future.
    """

    def __init__(self, config: DataMUXFormerConfig) -> None:
        super().__init__()
        self.num_streams, dim = config.num_streams, config.dim
        self.special = nn.Embedding(self.num_streams + 1, dim)  # the indices, then the padding
        nn.init.normal_(self.special.weight, std=0.02)
        self.norm = nn.LayerNorm(dim)
        # W [h; p] = W_h h + W_p p: the first once per token, the second once per stream.
        self.of_token = nn.Linear(dim, dim)
        self.of_prefix = nn.Linear(dim, dim, bias=False)
        self.activation = nn.GELU()

    def prefix(self) -> Tensor:
        """Make the special tokens of all streams, (1, s, s, e): an index each on the diagonal."""
        places = torch.arange(self.num_streams, device=self.special.weight.device)
        rows = places.where(places == places.unsqueeze(1), self.num_streams)
        return self.special(rows).unsqueeze(0)

    def forward(self, prefix: Tensor, tokens: Tensor) -> Tensor:
        """Demultiplex (g, s, e) and (g, t, e) -> (g, s, t, e)."""
        tokens = self.of_token(self.norm(tokens))
        prefix = self.of_prefix(self.norm(prefix))
        return self.activation(tokens.unsqueeze(1) + prefix.unsqueeze(2))


class SlotsDemultiplexing(nn.Module):
    r"""Read every stream out with a layer of its own, before one that all share.

    .. math:: y^{(k)}_t = \mathrm{GELU}(W \, \mathrm{norm}(z^{(k)}_t) + b), \quad
        z^{(k)}_t = \mathrm{GELU}(W^{(k)} h_t + b^{(k)})

    The original calls it MLP demultiplexing. It needs no prefix.
    """

    def __init__(self, config: DataMUXFormerConfig) -> None:
        super().__init__()
        self.num_streams, dim = config.num_streams, config.dim
        self.norm = nn.LayerNorm(dim)
        self.own = nn.Linear(dim, self.num_streams * dim)
        self.activation = nn.GELU()
        self.inner_norm = nn.LayerNorm(dim)
        self.shared = nn.Sequential(nn.Linear(dim, dim), nn.GELU())

    def prefix(self) -> None:
        """Streams are told apart by their weights alone."""

    def forward(self, prefix: None, tokens: Tensor) -> Tensor:
        """Demultiplex (g, t, e) -> (g, s, t, e)."""
        own = self.activation(self.own(self.norm(tokens)))
        own = own.unflatten(-1, (self.num_streams, -1)).transpose(1, 2)
        return self.shared(self.inner_norm(own))


class DataMUXFormer(SequenceModel):
    """Answer up to N sequences per pass through an ordinary Transformer with softmax attention.

    All sequences of a group share one attention score per pair of places. Like the other models it
    takes any batch size, any ``active_streams`` and sequences of different length, which the
    original does not: padding adds nothing to a mixture and is attended to only where another
    sequence of the group still goes on.

    >>> config = DataMUXFormerConfig(vocab_size=9, max_length=12, num_classes=3, depth=1)
    >>> model = DataMUXFormer(config).eval()
    >>> tokens = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 0]])
    >>> model(tokens).shape, model.retrieval_logits(tokens).shape
    (torch.Size([3, 3]), torch.Size([3, 3, 9]))
    """

    kind = "datamuxformer"
    config_class = DataMUXFormerConfig
    warm_ups = frozenset({"retrieval"})
    config: DataMUXFormerConfig

    def __init__(self, config: DataMUXFormerConfig, *, generator: Generator | None = None) -> None:
        super().__init__(config)
        self.multiplexing = GaussianMultiplexing(
            config.num_streams, config.dim, generator=generator
        )
        self.blocks = nn.ModuleList(
            Block(config, SoftmaxAttention(causal=config.causal)) for _ in range(config.depth)
        )
        self.demultiplexing: IndexDemultiplexing | SlotsDemultiplexing = (
            IndexDemultiplexing(config) if config.demux == "index" else SlotsDemultiplexing(config)
        )

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        active_streams: int | None = None,
    ) -> Tensor:
        """Answer each sequence; while ``retrieval`` warms up, name the token at each of its places.

        Naming the inputs is what the original warms up with; see :meth:`retrieval_logits`.
        """
        if self.warm_up != "retrieval":
            return super().forward(tokens, mask, active_streams)
        self.check_tokens(tokens, mask)
        return self.retrieval_logits(tokens, mask, active_streams)

    def encode(self, tokens: Tensor, mask: Tensor | None, active_streams: int | None) -> Tensor:
        """Run the blocks on the mixtures and take the streams apart again."""
        active = check_active_streams(active_streams, self.num_streams)
        only_first = self.config.pooling == "cls" and self.config.head != "next_token"
        x, mask = self._streams(tokens, mask, active, only_first=only_first)
        return unfold_streams(self.summarise(x, mask), tokens.shape[0], active)

    @property
    def title(self) -> str:
        """Name it by streams and demultiplexing, as in DataMUXFormer (N=2, index)."""
        return f"{type(self).__name__} (N={self.config.num_streams}, {self.config.demux})"

    def alternatives(self) -> list[TransformerConfig]:
        """List the Transformer of the same size."""
        return [self.config.narrowed_to(TransformerConfig)]

    def retrieval_logits(
        self, tokens: Tensor, mask: Tensor | None = None, active_streams: int | None = None
    ) -> Tensor:
        """Say which token stands at each place of each sequence: (b, t) -> (b, t, v).

        Scores are inner products with the token embedding: no weights but those of the model, and
        the demultiplexing is warmed up too. Pairs (b, 2, t) give (b, 2, t, v).
        """
        active = check_active_streams(active_streams, self.num_streams)
        flat = tokens.flatten(0, -2)
        x, _ = self._streams(flat, None if mask is None else mask.flatten(0, -2), active)
        x = unfold_streams(self.norm(x[..., -flat.shape[1] :, :]), len(flat), active)
        scores = F.linear(x, self.embedding.tokens.weight)
        return scores.unflatten(0, tokens.shape[:-1])

    def _streams(
        self, tokens: Tensor, mask: Tensor | None, active: int, *, only_first: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Multiplex, run the blocks, demultiplex: (b, t) -> (g, s, t, e), with a mask (g, s, t)."""
        x, mask = self.embedding(tokens, mask)
        x = fold_streams(x, self.num_streams, active)
        seen = None
        if mask is not None:
            mask = fold_streams(mask, self.num_streams, active)
            x = x.masked_fill(~mask.unsqueeze(-1), 0.0)
            seen = mask.any(dim=1)  # g t
        x = self.multiplexing(x)
        prefix = self.demultiplexing.prefix()
        before = 0
        if prefix is not None:
            before = prefix.shape[2]
            special = self.multiplexing(prefix).expand(x.shape[0], -1, -1)
            x = torch.cat([special, x], dim=1)
            seen = None if seen is None else F.pad(seen, (before, 0), value=True)
        for block in self.blocks:
            x = block(x, seen)
        prefix, x = x[:, :before], x[:, before : before + 1 if only_first else None]
        return self.demultiplexing(prefix, x), mask
