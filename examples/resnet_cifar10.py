"""A pretrained ResNet-56 takes one, two or four CIFAR-10 images per pass, against ResNet-20.

python examples/resnet_cifar10.py WEIGHTS DATA [STEPS]
WEIGHTS is a folder with resnet20.safetensors and resnet56.safetensors, DATA one with CIFAR-10.
"""

import sys
from pathlib import Path

import torch
from resnet import pretrained  # the networks of He et al., beside this file

import mimonets as mn
from mimonets.data import AugmentConfig, DataConfig, ImageBatches, load_data
from mimonets.evaluation import count_macs
from mimonets.evaluation.accuracy import evaluate
from mimonets.training import TrainConfig, train

MEAN, DEVIATION = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]) * 255
IMAGE = torch.zeros(1, 3, 32, 32)
TILES = {"num_streams": 4, "bind_after": "layer1.1", "unbind_before": "pool", "binding": "tiles"}
MODES = {1: 0.1, 2: 0.2, 4: 0.7}  # images per pass: share of the training steps


def main(weights: Path, data: str, steps: int, limit: int, out: Path, where=TILES, modes=MODES):
    """Superpose, distil from the original, compare: rows of name, mode, accuracy, MACs."""
    splits = load_data(DataConfig(name="cifar10", dir=data, download=False))
    options = {"batch_size": 64, "statistics": (MEAN, DEVIATION)}
    batches = ImageBatches(splits.train, augment=AugmentConfig(), shuffle=True, **options)
    tested = ImageBatches(splits.test.subset(torch.arange(limit)), **options)

    mine = mn.superpose(pretrained(weights, 56).train(), **where, example=IMAGE)
    config = TrainConfig(
        **{"steps": steps, "batch_size": 64, "per_stream": False, "modes": modes, "mixup": 0.0},
        **{"optimizer": "adamw", "lr": 1e-3, "distill": 0.9, "precision": "bf16"},
    )
    train(mine, batches, config, run_dir=out, teacher=pretrained(weights, 56), resume=True)

    rows = []
    for depth in (56, 20):
        alone = mn.superpose(pretrained(weights, depth), num_streams=1, example=IMAGE)
        rows.append((f"ResNet-{depth}", alone, 1))
    rows += [("superposed ResNet-56", mine, active) for active in modes]
    return [
        (name, active, evaluate(model, tested, [active])[active], count_macs(model, active).plain)
        for name, model, active in rows
    ]


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    folder, data, steps = (*sys.argv[1:], "400")[:3]
    found = main(Path(folder), data, int(steps), 10_000, Path("runs/resnet56"))
    for name, active, measured, macs in found:
        print(f"{name}, {active} per pass: {measured.accuracy:.1%}, {macs / 1e6:.0f} million MACs")
