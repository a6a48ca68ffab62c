"""Time the isometry penalty by matrix products against the convolution it replaces.

Forward and backward over all trunk convolutions of a MIMOConv-28-10, interleaved. Writes
bench-isometry.json into the folder that is named, or runs/results.
"""

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimonets import MIMOConv, MIMOConvConfig
from mimonets._files import write_text
from mimonets.evaluation import Contender, race
from mimonets.evaluation.provenance import environment
from mimonets.layers import isometry_penalty


def penalty_by_convolution(weight: Tensor, stride: int) -> Tensor:
    """Convolve the kernel with itself, as the paper writes it."""
    if weight.shape[0] > weight.shape[1]:
        weight = weight.transpose(0, 1)
    padding = (weight.shape[-1] - 1) // stride * stride
    gram = F.conv2d(weight, weight, padding=padding, stride=stride)
    delta = torch.zeros_like(gram)
    center = padding // stride
    delta[:, :, center, center] = torch.eye(len(weight))
    return (gram - delta).square().sum() / 2


def main(folder: Path) -> None:
    """Time both and write the ratio."""
    model = MIMOConv(MIMOConvConfig())
    layers = [layer for layer in model.trunk.modules() if isinstance(layer, nn.Conv2d)]

    def run(penalty) -> float:
        total = sum(penalty(layer.weight, layer.stride[0]) for layer in layers)
        torch.autograd.grad(total, [layer.weight for layer in layers])
        return total.item()

    by_products, by_convolution = run(isometry_penalty), run(penalty_by_convolution)
    assert abs(by_products / by_convolution - 1) < 1e-3, (by_products, by_convolution)
    fast, slow = race(
        [
            Contender("matrix products", lambda: run(isometry_penalty), 1),
            Contender("convolution", lambda: run(penalty_by_convolution), 1),
        ],
        rounds=3,
        warmup=0,
    )
    median, low, high = fast.speedup_over(slow)
    print(f"matrix products are {median:.1f} times as fast ({low:.1f}-{high:.1f})")
    record = {
        "environment": environment(),
        "speedup": {"median": median, "low": low, "high": high},
        "seconds": {fast.name: fast.seconds, slow.name: slow.seconds},
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "bench-isometry.json", json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/results"))
