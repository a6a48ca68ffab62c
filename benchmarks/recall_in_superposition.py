"""Ask an attention block in superposition to recall, and count how often it answers right.

Associative recall without training: the weights of one block are set so that it must look up which
value came with a key. Every pair is one token, [code of the key, code of the value]; the last token
asks with [code of a key, 0]. Queries and keys compare the first half, values carry the second, and
the answer is the dictionary entry nearest to what the block adds to the asking token.

Alone in its pass the block is always right. What superposition adds is crosstalk: this measures it
for every extent of superposition, against the size of the embedding (E) and of the head (D).
Writes recall-in-superposition.json and a plot into runs/results, or --out.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from mimonets._files import write_text
from mimonets.attention import ReLUFeatures
from mimonets.attention.modules import BundledFavorS, FavorS
from mimonets.evaluation.provenance import environment
from mimonets.models import MIMOFormerConfig
from mimonets.models.blocks import Block, FullySuperposedBlock, SuperposedMLPBlock
from mimonets.vsa import bipolar_keys, cleanup

EXTENTS = ("attention", "attention+mlp", "attention+mlp+qkv")
PAIRS = 8  # key-value pairs per sequence, all different


def make_block(
    extent: str, dim: int, head_dim: int, side: int, generator: torch.Generator
) -> Block:
    """Set the weights so that the block recalls: W_k = W_q reads keys, W_o W_v gives values."""
    config = MIMOFormerConfig(
        dim=dim, head_dim=head_dim, heads=1, hidden_dim=1, grid=(side, side), dropout=0.0
    )
    features = ReLUFeatures(head_dim, 1024, generator=generator, epsilon=0.0)

    def keys(size: int) -> Tensor:
        return bipolar_keys(side * side, size, generator=generator).view(side, side, size)

    if extent == "attention":
        block = Block(config, FavorS(keys(head_dim), features, damping=False))
    elif extent == "attention+mlp":
        attention = FavorS(keys(head_dim), features, normalise="joint", damping=False)
        block = SuperposedMLPBlock(config, attention, keys(dim))
    else:
        block = FullySuperposedBlock(config, BundledFavorS(features, damping=False), keys(dim))

    # A random isometry from the embedding into the (larger) head, and its transpose back.
    lift = torch.linalg.qr(torch.randn(head_dim, dim, generator=generator)).Q  # D E
    reads_key = torch.cat([torch.ones(dim // 2), torch.zeros(dim - dim // 2)])
    with torch.no_grad():
        block.norm1, block.norm2 = torch.nn.Identity(), torch.nn.Identity()
        for layer in (block.to_q, block.to_kv, block.out, *block.mlp[::3]):
            layer.bias.zero_()
            layer.weight.zero_()
        block.to_q.weight.copy_(lift * reads_key)
        block.to_kv.weight.copy_(torch.cat([lift * reads_key, lift * (1 - reads_key)]))
        block.out.weight.copy_(lift.T)
        if extent == "attention+mlp":
            # The output projection also has to exchange head keys for embedding keys, for all
            # streams at once; training finds such a matrix, and this is the one for large heads.
            bind, unbind = block.embedding_keys, block.attention.stream_keys
            block.out.weight.copy_(torch.einsum("mne,de,mnd->ed", bind, lift, unbind))
    return block.eval()


@torch.inference_mode()
def accuracy(
    extent: str, dim: int, head_dim: int, side: int, groups: int = 50, seed: int = 0
) -> float:
    """Count the share of right answers over ``groups`` passes of side x side sequences."""
    generator = torch.Generator().manual_seed(seed)
    block = make_block(extent, dim, head_dim, side, generator)
    half = dim // 2
    keys = bipolar_keys(PAIRS, half, generator=generator) / half**0.5
    values = bipolar_keys(2 * PAIRS, dim - half, generator=generator) / (dim - half) ** 0.5
    shape = (groups, side, side)
    order = torch.rand(*shape, PAIRS, generator=generator).argsort(dim=-1)
    meant = torch.rand(*shape, 2 * PAIRS, generator=generator).argsort(dim=-1)[..., :PAIRS]
    pairs = torch.cat([keys[order], values[meant]], dim=-1)  # g m n t e
    asked = torch.randint(PAIRS, (*shape, 1), generator=generator)
    query = torch.cat([keys[order.gather(-1, asked)], torch.zeros(*shape, 1, dim - half)], dim=-1)
    tokens = torch.cat([pairs, query], dim=-2)
    answers = torch.cat([block(part, None)[..., -1, half:] for part in tokens.split(5)])
    found, _ = cleanup(answers, values)
    return (found == meant.gather(-1, asked).squeeze(-1)).float().mean().item()


def main() -> None:
    """Measure, print, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--groups", type=int, default=50, help="passes per figure (%(default)s)")
    parser.add_argument("--out", default="runs/results", metavar="DIR", help="(%(default)s)")
    args = parser.parse_args()
    groups, folder = args.groups, Path(args.out)
    rows = [
        {
            "extent": extent,
            "grid": side,
            "embedding": dim,
            "head": head_dim,
            "accuracy": accuracy(extent, dim, head_dim, side, groups),
            "sequences": groups * side**2,
        }
        for side in (1, 2, 4)
        for dim in (64, 128, 256, 512)
        for head_dim in (dim, 4 * dim)
        for extent in EXTENTS
    ]
    folder.mkdir(parents=True, exist_ok=True)
    record = {"environment": environment(), "pairs": PAIRS, "rows": rows}
    write_text(folder / "recall-in-superposition.json", json.dumps(record, indent=2) + "\n")
    for row in rows:
        print(
            "{grid}x{grid}  E={embedding:<5} D={head:<5} {extent:<18} {accuracy:.1%}".format(**row)
        )
    draw(rows, folder / "recall-in-superposition.png")


def draw(rows: list[dict[str, object]], path: Path) -> None:
    """Draw accuracy against the embedding size, a panel per grid."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, side in zip(panels, (2, 4), strict=True):
        for color, extent in zip(("tab:blue", "tab:orange", "tab:green"), EXTENTS, strict=True):
            for factor, style in ((1, ":"), (4, "-")):
                points = [
                    (row["embedding"], row["accuracy"])
                    for row in rows
                    if row["grid"] == side
                    and row["extent"] == extent
                    and row["head"] == factor * row["embedding"]
                ]
                label = f"{extent}, D = {'E' if factor == 1 else '4 E'}"
                axes.plot(*zip(*points, strict=True), style, marker="o", color=color, label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks([64, 128, 256, 512], ["64", "128", "256", "512"])
        axes.set_xlabel("embedding size E")
        axes.set_title(f"{side} x {side} streams")
        axes.grid(alpha=0.3)
        axes.set_ylim(0, 1.03)
    panels[0].set_ylabel("right answers (chance 1/16)")
    panels[1].legend(frameon=False, fontsize="small", title="superposed; D: size of the head")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
