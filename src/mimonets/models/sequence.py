"""What all sequence models share: embedding, pooling and the three kinds of answers."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from mimonets._config import Config, number, size
from mimonets._inputs import InputSpec
from mimonets.attention.checks import check_mask
from mimonets.models.base import MAX_DEPTH, Model, check_is_tensor

# b batch   t tokens   e embedding

HeadName = Literal["classify", "pair", "next_token"]
PoolingName = Literal["mean", "cls"]
PositionName = Literal["learned", "fixed"]
ActivationName = Literal["gelu", "relu"]
StyleName = Literal["ours", "gpt2"]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(Config):
    """A Transformer with softmax attention, the baseline whose cost is quadratic in the length."""

    vocab_size: int = size(256)  # token ids are 0 .. vocab_size - 1
    max_length: int = size(1024)  # tokens of the longest sequence; cost and bench use it
    num_classes: int = size(10)  # not used by head="next_token"
    depth: int = size(3, most=MAX_DEPTH)  # blocks
    heads: int = size(4)
    head_dim: int = size(64)  # D in the paper
    dim: int = size(64)  # size of the embedding, E in the paper
    hidden_dim: int = size(128)  # of the MLPs
    head: HeadName = "classify"  # or pair: two documents, one answer; or next_token
    pooling: PoolingName = "mean"  # over real tokens, or an added CLS token
    positions: PositionName = "learned"  # or fixed: sines and cosines
    activation: ActivationName = "gelu"  # of the MLPs; the authors' LRA runs have relu
    embedding_std: float = number(0.02, above=0)  # of tokens and learned positions at the start
    causal: bool = False  # tokens see only what came before them
    dropout: float = number(0.1, least=0, below=1)
    # gpt2, as the source of recall and induction: weights start at N(0, embedding_std), those that
    # end a skip connection smaller; next tokens are scored by the token embedding; dropout is on
    # embeddings and on the weights of softmax attention only.
    style: StyleName = "ours"

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found = super().problems()
        if self.head == "next_token" and not self.causal:
            found.append("head='next_token' would see its own answer: set causal=True.")
        if self.head != "next_token" and self.pooling == "cls" and self.causal:
            found.append("pooling='cls' sees nothing if causal=True: use pooling='mean'.")
        return found


class SequenceModel(Model):
    """A model that takes token ids (b, t) and a mask (b, t) of real tokens.

    Three heads: ``classify`` answers (b, classes); ``pair`` takes two documents per answer, tokens
    (b, 2, t); ``next_token`` answers (b, t, vocabulary). Subclasses say in :meth:`encode` what
    happens between embedding and read-out.
    """

    config: TransformerConfig
    cost_parts = ("K/Q/V", "attention", "binding", "MLPs", "demultiplexing", "readout")

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.embedding = Embedding(config)
        self.norm = nn.LayerNorm(config.dim)
        width = 4 * config.dim if config.head == "pair" else config.dim
        answers = config.vocab_size if config.head == "next_token" else config.num_classes
        self.readout: nn.Module = nn.Linear(width, answers)
        if config.head == "next_token" and config.style == "gpt2":
            self.readout = TokenScores(self.embedding.tokens)
        elif config.head != "next_token":
            self.readout = nn.Sequential(
                nn.Linear(width, config.hidden_dim),
                nn.ReLU(),
                nn.Linear(config.hidden_dim, answers),
            )

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        active_streams: int | None = None,
    ) -> Tensor:
        """Answer each sequence, or each pair of them, in order.

        Args:
            tokens: ids, (b, t), or (b, 2, t) for pairs.
            mask: like tokens, True = real token; all are by default. What stands in padded places
                changes nothing.
            active_streams: how many different sequences share a pass; by default all streams.
        """
        self.check_tokens(tokens, mask)
        pairs = self.config.head == "pair"
        if pairs:
            tokens = tokens.flatten(0, 1)
            mask = None if mask is None else mask.flatten(0, 1)
        features = self.encode(tokens, mask, active_streams)  # b e, or b t e
        if pairs:
            x, y = features.unflatten(0, (-1, 2)).unbind(1)
            features = torch.cat([x, y, x * y, x - y], dim=-1)
        return self.readout(features)

    def encode(self, tokens: Tensor, mask: Tensor | None, active_streams: int | None) -> Tensor:
        """Turn sequences into features: (b, e), or (b, t, e) for next_token."""
        raise NotImplementedError

    def summarise(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Norm and pool: (..., t, e) -> (..., e); next_token keeps all tokens."""
        x = self.norm(x)
        if self.config.head == "next_token":
            return x
        if self.config.pooling == "cls":
            return x[..., 0, :]
        if mask is None:
            return x.mean(dim=-2)
        real = mask.unsqueeze(-1).to(x.dtype)
        return (x * real).sum(dim=-2) / real.sum(dim=-2).clamp_min(1)

    def default_input_spec(self) -> InputSpec:
        """Describe the token ids by length and vocabulary of the config."""
        config = self.config
        pair = (2,) if config.head == "pair" else ()
        shape = (*pair, config.max_length)
        return InputSpec(kind="tokens", shape=shape, vocab_size=config.vocab_size)

    def cost_part(self, layer: str) -> str:
        """Name the row of the paper's cost table that a layer belongs to."""
        return next((COST_ROWS[word] for word in layer.split(".") if word in COST_ROWS), "MLPs")

    def check_tokens(self, tokens: Tensor, mask: Tensor | None) -> None:
        """Raise a ValueError if tokens or mask do not fit this model; it says what does.

        Values are looked at on the CPU only. On a GPU that would make the program wait for it; ids
        outside the vocabulary trip the device-side assertion of PyTorch's embedding there. To find
        out which, pass the same tokens to this method on the CPU.
        """
        name, config = type(self).__name__, self.config
        check_is_tensor(tokens, name)
        wanted = "(batch, 2, tokens)" if config.head == "pair" else "(batch, tokens)"
        if tokens.ndim != wanted.count(",") + 1 or (tokens.ndim == 3 and tokens.shape[1] != 2):
            raise ValueError(f"{name} takes token ids {wanted}, but got {tuple(tokens.shape)}.")
        if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
            raise ValueError(f"Token ids must be integers, but got {tokens.dtype}: use .long().")
        if tokens.shape[0] == 0 or tokens.shape[-1] == 0:
            raise ValueError(
                f"Token ids of shape {tuple(tokens.shape)} are empty: "
                f"pass at least one sequence of at least one token."
            )
        if tokens.shape[-1] > config.max_length:
            raise ValueError(
                f"Sequences of {tokens.shape[-1]} tokens are longer than max_length="
                f"{config.max_length}: cut them, or build the model with a larger max_length."
            )
        check_mask(mask, tuple(tokens.shape), wanted)
        if tokens.is_cpu and not torch.compiler.is_compiling():  # a compiler has no values either
            low, high = tokens.long().aminmax()  # uint16 and the like have no aminmax
            if low < 0 or high >= config.vocab_size:
                raise ValueError(
                    f"Token ids lie between {int(low)} and {int(high)}, but vocab_size="
                    f"{config.vocab_size} allows 0 to {config.vocab_size - 1}."
                )


# Where the layers of a sequence model stand in the paper's cost table.
COST_ROWS = {
    "norm1": "K/Q/V",
    "to_q": "K/Q/V",
    "to_kv": "K/Q/V",
    "attention": "attention",
    "out": "attention",
    "demultiplexing": "demultiplexing",
    "readout": "readout",
}


class Embedding(nn.Module):
    r"""Token embedding plus position, and a CLS token in front if the pooling wants one.

    Learned positions are parameters; fixed ones are

    .. math:: p_{t, 2i} = \sin(t / 10000^{2i/E}), \quad p_{t, 2i+1} = \cos(t / 10000^{2i/E})
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.dim)
        std = config.embedding_std
        nn.init.normal_(self.tokens.weight, std=std)
        self.positions: nn.Parameter | None = None
        if config.positions == "learned":
            self.positions = nn.Parameter(std * torch.randn(config.max_length, config.dim))
        self.cls: nn.Parameter | None = None
        if config.pooling == "cls" and config.head != "next_token":
            self.cls = nn.Parameter(std * torch.randn(config.dim))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Embed (b, t) -> (b, t, e), with the mask that fits; one token more with CLS."""
        x = self.tokens(tokens.long())  # ids may come as uint8 or any other integers
        if self.positions is None:
            position = sinusoids(x.shape[-2], x.shape[-1], x.device).to(x.dtype)
        else:
            position = self.positions[: x.shape[-2]]
        x = self.dropout(x + position)
        if self.cls is None:
            return x, mask
        x = torch.cat([self.cls.expand(x.shape[0], 1, -1), x], dim=1)
        if mask is not None:
            mask = torch.cat([mask.new_ones(mask.shape[0], 1), mask], dim=1)
        return x, mask


class TokenScores(nn.Module):
    """Score every token of the vocabulary by its embedding: a read-out without weights of its own.

    Press & Wolf, "Using the output embedding to improve language models", EACL 2017.
    """

    def __init__(self, tokens: nn.Embedding) -> None:
        super().__init__()
        self._tokens = (tokens,)  # in a tuple: its weights are saved once, with the embedding

    def forward(self, features: Tensor) -> Tensor:
        """Map (..., e) to (..., vocabulary)."""
        return nn.functional.linear(features, self._tokens[0].weight)


def start_as_gpt2(block: nn.Module, config: TransformerConfig) -> None:
    """Draw the weights of a block from N(0, embedding_std); smaller where they end a skip.

    Radford et al., "Language models are unsupervised multitask learners", 2019: the two layers of
    a block that add to its skip connection are divided by the root of how many there are in all.
    """
    for name, module in block.named_modules():
        if isinstance(module, nn.Linear):
            last = name in ("out", "mlp.3")
            std = config.embedding_std / (math.sqrt(2 * config.depth) if last else 1)
            nn.init.normal_(module.weight, std=std)
            nn.init.zeros_(module.bias)


def sinusoids(length: int, dim: int, device: torch.device) -> Tensor:
    """Compute fixed positions, (t, e). Vaswani et al., "Attention is all you need", 2017.

    >>> sinusoids(2, 4, torch.device("cpu"))[0]
    tensor([0., 1., 0., 1.])
    """
    half = torch.arange(0, dim, 2, device=device)
    angle = torch.arange(length, device=device)[:, None] * torch.exp(
        half * (-math.log(10_000.0) / dim)
    )
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :dim]
