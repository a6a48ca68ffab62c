"""The one-input baselines of MIMOFormer: softmax attention, and linear attention."""

from dataclasses import dataclass
from typing import Literal

from torch import Generator, Tensor, nn

from mimonets._config import size
from mimonets.attention import DPFP, FeatureMap, ReLUFeatures, SoftmaxFeatures
from mimonets.attention.modules import Attention, LinearAttention, SoftmaxAttention
from mimonets.models.blocks import Block
from mimonets.models.sequence import SequenceModel, TransformerConfig
from mimonets.vsa import check_active_streams

FeatureName = Literal["relu", "softmax", "dpfp"]


@dataclass(frozen=True, kw_only=True)
class PerformerConfig(TransformerConfig):
    """A Performer: linear attention with random features. Choromanski et al., ICLR 2021."""

    features: FeatureName = "relu"  # FAVOR+ with ReLU or softmax features, or DPFP
    num_features: int = size(256)  # R in the paper; DPFP has 2 * head_dim * dpfp_nu
    dpfp_nu: int = size(1)


class Transformer(SequenceModel):
    """Softmax attention through PyTorch's ``scaled_dot_product_attention``.

    >>> config = TransformerConfig(vocab_size=9, max_length=12, num_classes=3, depth=1)
    >>> Transformer(config).eval()(torch.tensor([[1, 2, 3], [4, 5, 6]])).shape
    torch.Size([2, 3])
    """

    kind = "transformer"
    config_class = TransformerConfig

    def __init__(self, config: TransformerConfig, *, generator: Generator | None = None) -> None:
        super().__init__(config)
        self.blocks = nn.ModuleList(
            Block(config, self.make_attention(generator)) for _ in range(config.depth)
        )

    def make_attention(self, generator: Generator | None) -> Attention:
        """Make the attention of one block."""
        dropout = self.config.dropout if self.config.style == "gpt2" else 0.0
        return SoftmaxAttention(causal=self.config.causal, dropout=dropout)

    def encode(self, tokens: Tensor, mask: Tensor | None, active_streams: int | None) -> Tensor:
        """Run the blocks on every sequence by itself; only one active stream fits."""
        check_active_streams(active_streams, self.num_streams)
        x, mask = self.embedding(tokens, mask)
        for block in self.blocks:
            x = block(x, mask, self.warm_up)
        return self.summarise(x, mask)


class Performer(Transformer):
    """Linear attention (FAVOR+ or DPFP): time and memory grow with the length, not its square.

    The warm-up ``exact`` takes a softmax in place of the features.

    >>> config = PerformerConfig(vocab_size=9, max_length=12, num_classes=3, depth=1)
    >>> Performer(config).eval()(torch.tensor([[1, 2, 3], [4, 5, 6]])).shape
    torch.Size([2, 3])
    """

    kind = "performer"
    config_class = PerformerConfig
    config: PerformerConfig
    warm_ups = frozenset({"exact"})

    def make_attention(self, generator: Generator | None) -> Attention:
        """Make the attention of one block, with random features of its own."""
        return LinearAttention(make_features(self.config, generator), causal=self.config.causal)


def make_features(config: PerformerConfig, generator: Generator | None) -> FeatureMap:
    """Make the feature map that a config names."""
    if config.features == "dpfp":
        return DPFP(config.head_dim, config.dpfp_nu)
    kind = ReLUFeatures if config.features == "relu" else SoftmaxFeatures
    return kind(config.head_dim, config.num_features, generator=generator)
