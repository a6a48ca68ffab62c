"""MIMOFormer: a grid of sequences in one pass through one Performer. MIMONets, section 4."""

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Generator, Tensor, nn

from mimonets._config import size
from mimonets.attention.modules import BundledFavorS, FavorS
from mimonets.models.baselines.transformer import PerformerConfig, make_features
from mimonets.models.blocks import Block, FullySuperposedBlock, SuperposedMLPBlock
from mimonets.models.sequence import SequenceModel
from mimonets.vsa import bipolar_keys, check_active_streams, fold_streams, unfold_streams

# b batch   g groups   m, n the two stream axes   t tokens   e embedding   h heads   d head size

SuperposeName = Literal["attention", "attention+mlp", "attention+mlp+qkv"]


@dataclass(frozen=True, kw_only=True)
class MIMOFormerConfig(PerformerConfig):
    """The multiple-input Performer. MIMONets, section 4."""

    grid: tuple[int, int] = size((2, 2))  # M x N streams: bundled queries x bundled keys and values
    superpose: SuperposeName = "attention"  # what runs in superposition
    damping: bool = True  # multiply bundled q and k by (M N)^(-1/2)

    @property
    def num_streams(self) -> int:
        """M * N."""
        return self.grid[0] * self.grid[1]


class MIMOFormer(SequenceModel):
    """Answer up to M x N sequences per pass, with one set of weights.

    ``superpose`` says how much runs in superposition: the attention (``"attention"``), also its
    output projection and the MLP (``"attention+mlp"``), or, beyond the paper, the K/Q/V
    projections too (``"attention+mlp+qkv"``).

    ``active_streams`` is the number of different sequences in a pass, as in MIMOConv: a sequence
    that sits in several streams gets the average of their features. Sequences of a group may
    differ in length, and groups that are not full fill their streams with copies.

    Warm-ups, see :meth:`warming_up`: ``solo`` binds every sequence to the keys of its stream and
    bundles it with no other; ``exact`` also takes a softmax in place of the features. Both cost as
    much as a pass per stream. The paper's curriculum starts with half of each side of the grid.

    >>> config = MIMOFormerConfig(vocab_size=9, max_length=12, num_classes=3, depth=1, grid=(2, 2))
    >>> model = MIMOFormer(config).eval()
    >>> tokens = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 0]])
    >>> model(tokens).shape, model(tokens, active_streams=1).shape
    (torch.Size([3, 3]), torch.Size([3, 3]))
    """

    kind = "mimoformer"
    config_class = MIMOFormerConfig
    config: MIMOFormerConfig
    warm_ups = frozenset({"exact", "solo"})

    def __init__(self, config: MIMOFormerConfig, *, generator: Generator | None = None) -> None:
        super().__init__(config)
        self.blocks = nn.ModuleList(_make_block(config, generator) for _ in range(config.depth))

    def encode(self, tokens: Tensor, mask: Tensor | None, active_streams: int | None) -> Tensor:
        """Run the blocks on a grid of sequences."""
        m, n = self.smaller_grid or self.config.grid
        active = check_active_streams(active_streams, m * n)
        x, mask = self.embedding(tokens, mask)
        batch_size = x.shape[0]
        x = fold_streams(x, m * n, active).unflatten(1, (m, n))  # g m n t e
        if mask is not None:
            mask = fold_streams(mask, m * n, active).unflatten(1, (m, n))  # g m n t
        if self._can_factor(x):
            features = self._encode_factored(x, mask)
        else:
            for block in self.blocks:
                x = block(x, mask, self.warm_up)
            features = self.summarise(x, mask)
        return unfold_streams(features.flatten(1, 2), batch_size, active)  # g (m n) e

    def _can_factor(self, x: Tensor) -> bool:
        """Whether the exact algebra of inference serves: no gradients, and streams that share z."""
        device = x.device.type
        autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        return (
            self.config.superpose != "attention"
            and not (self.training or torch.is_grad_enabled() or autocast)
            and self.warm_up is None
            and device != "meta"  # where layers are counted, as the paper does
            and x.dtype in (torch.float32, torch.float64)
        )

    def _encode_factored(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Run blocks and read-out on what the streams share; the same up to rounding."""
        first, *others = cast(list[SuperposedMLPBlock], list(self.blocks))
        factored = first.forward_factored(x, mask)
        for block in others:
            factored = block.forward_factored(factored, mask)
        if self.config.head != "next_token" and self.config.pooling == "mean":
            return factored.pooled(self.norm, mask)
        return self.summarise(factored.streams(), mask)

    @property
    def title(self) -> str:
        """Name it by its grid, as in MIMOFormer (2x2, attention)."""
        m, n = self.config.grid
        return f"{type(self).__name__} ({m}x{n}, {self.config.superpose})"

    def alternatives(self) -> list[PerformerConfig]:
        """List the Performer of the same size."""
        return [self.config.narrowed_to(PerformerConfig)]

    @classmethod
    def upgrade_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Leave out a setting that is gone, if it was off."""
        if config.get("shared_keys"):
            raise ValueError("shared_keys was removed: mimonets 0.2.0 is the last that loads it.")
        return {name: value for name, value in config.items() if name != "shared_keys"}

    def _check_grid(self, grid: tuple[int, int] | None) -> None:
        largest = self.config.grid
        if grid is None:
            return
        if len(grid) != 2 or not all(1 <= s <= top for s, top in zip(grid, largest, strict=True)):
            raise ValueError(
                f"grid={tuple(grid)} does not fit a model with a grid of {largest}: "
                f"each side must be at least 1 and at most the model's."
            )


def _make_block(config: MIMOFormerConfig, generator: Generator | None) -> Block:
    features = make_features(config, generator)
    options = {"causal": config.causal, "damping": config.damping}
    if config.superpose == "attention+mlp+qkv":
        bundled = BundledFavorS(features, **options)
        return FullySuperposedBlock(config, bundled, _keys(config, config.dim, generator))
    keys = _keys(config, config.heads * config.head_dim, generator)
    keys = keys.unflatten(-1, (config.heads, config.head_dim))  # m n h d
    if config.superpose == "attention":
        return Block(config, FavorS(keys, features, normalise="stream", **options))
    attention = FavorS(keys, features, normalise="joint", **options)
    return SuperposedMLPBlock(config, attention, _keys(config, config.dim, generator))


def _keys(config: MIMOFormerConfig, dim: int, generator: Generator | None) -> Tensor:
    """Draw bipolar keys for the grid, (m, n, dim)."""
    return bipolar_keys(config.num_streams, dim, generator=generator).unflatten(0, config.grid)
