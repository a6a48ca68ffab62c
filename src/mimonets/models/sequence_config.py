"""Frozen dataclasses that fully describe a sequence model. They travel inside its checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mimonets.models.config import ModelConfig, is_whole

HeadName = Literal["classify", "pair", "next_token"]
PoolingName = Literal["mean", "cls"]
PositionName = Literal["learned", "fixed"]
FeatureName = Literal["relu", "softmax", "dpfp"]
DemuxName = Literal["index", "slots"]
SuperposeName = Literal["attention", "attention+mlp", "attention+mlp+qkv"]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """A Transformer with softmax attention, the baseline whose cost is quadratic in the length."""

    vocab_size: int = 256  # token ids are 0 .. vocab_size - 1
    max_length: int = 1024  # tokens of the longest sequence; cost and bench use it
    num_classes: int = 10  # not used by head="next_token"
    depth: int = 3  # blocks
    heads: int = 4
    head_dim: int = 64  # D in the paper
    dim: int = 64  # size of the embedding, E in the paper
    hidden_dim: int = 128  # of the MLPs
    head: HeadName = "classify"  # or pair: two documents, one answer; or next_token
    pooling: PoolingName = "mean"  # over real tokens, or an added CLS token
    positions: PositionName = "learned"  # or fixed: sines and cosines
    embedding_std: float = 0.02  # of tokens and learned positions at the start
    causal: bool = False  # tokens see only what came before them
    dropout: float = 0.1

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found = super().problems()
        found += self._wrong_choice("head", get_args(HeadName))
        found += self._wrong_choice("pooling", get_args(PoolingName))
        found += self._wrong_choice("positions", get_args(PositionName))
        if not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            found.append(f"dropout={self.dropout!r} must be at least 0 and below 1.")
        if not isinstance(self.embedding_std, int | float) or not self.embedding_std > 0:
            found.append(f"embedding_std={self.embedding_std!r} must be a number above 0.")
        if self.head == "next_token" and not self.causal:
            found.append("head='next_token' would see its own answer: set causal=True.")
        if self.head != "next_token" and self.pooling == "cls" and self.causal:
            found.append("pooling='cls' sees nothing if causal=True: use pooling='mean'.")
        return found

    def _smallest(self) -> dict[str, int]:
        names = ("vocab_size", "max_length", "num_classes", "depth", "heads", "head_dim", "dim")
        return dict.fromkeys((*names, "hidden_dim"), 1)


@dataclass(frozen=True, kw_only=True)
class PerformerConfig(TransformerConfig):
    """A Performer: linear attention with random features. Choromanski et al., ICLR 2021."""

    features: FeatureName = "relu"  # FAVOR+ with ReLU or softmax features, or DPFP
    num_features: int = 256  # R in the paper; DPFP has 2 * head_dim * dpfp_nu
    dpfp_nu: int = 1

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        return [*super().problems(), *self._wrong_choice("features", get_args(FeatureName))]

    def _smallest(self) -> dict[str, int]:
        return {**super()._smallest(), "num_features": 1, "dpfp_nu": 1}


@dataclass(frozen=True, kw_only=True)
class MIMOFormerConfig(PerformerConfig):
    """The multiple-input Performer. MIMONets, section 4."""

    grid: tuple[int, int] = (2, 2)  # M x N streams: bundled queries x bundled keys and values
    superpose: SuperposeName = "attention"  # what runs in superposition
    damping: bool = True  # multiply bundled q and k by (M N)^(-1/2)

    def __post_init__(self) -> None:
        """Check all settings; a grid read from JSON or YAML is a list."""
        if isinstance(self.grid, Sequence):
            object.__setattr__(self, "grid", tuple(self.grid))
        super().__post_init__()

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found = super().problems()
        found += self._wrong_choice("superpose", get_args(SuperposeName))
        grid = self.grid
        if (
            not isinstance(grid, tuple)
            or len(grid) != 2
            or not all(is_whole(side) and side >= 1 for side in grid)
        ):
            found.append(f"grid={grid!r} must be two whole numbers of at least 1, such as (2, 2).")
        return found

    @property
    def num_streams(self) -> int:
        """M * N."""
        return self.grid[0] * self.grid[1]


@dataclass(frozen=True, kw_only=True)
class DataMUXFormerConfig(TransformerConfig):
    """DataMUX on sequences. Murahari et al., NeurIPS 2022."""

    num_streams: int = 2  # sequences per superposition; slots in their words
    demux: DemuxName = "index"  # a prefix place per stream, joined to every token; or a layer each

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        return [*super().problems(), *self._wrong_choice("demux", get_args(DemuxName))]

    def _smallest(self) -> dict[str, int]:
        return {**super()._smallest(), "num_streams": 1}
