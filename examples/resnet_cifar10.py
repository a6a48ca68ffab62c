"""A pretrained ResNet-56 takes several CIFAR-10 images per pass, against the smaller ResNet-20.

python examples/resnet_cifar10.py WEIGHTS DATA [STREAMS [STEPS]]
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


def main(weights: Path, data: str, streams: int, steps: int, limit: int, out: Path) -> list:
    """Superpose, distil from the original, compare: rows of name, mode, accuracy, MACs."""
    splits = load_data(DataConfig(name="cifar10", dir=data, download=False))
    options = {"batch_size": 64, "statistics": (MEAN, DEVIATION)}
    batches = ImageBatches(splits.train, augment=AugmentConfig(), shuffle=True, **options)
    tested = ImageBatches(splits.test.subset(torch.arange(limit)), **options)

    mine = mn.superpose(
        pretrained(weights, 56).train(),
        **{"num_streams": streams, "bind_after": "layer1", "unbind_before": "linear"},
        **{"binding": "matrix", "identity_start": True, "example": IMAGE},
    )
    for name in ("conv1", "bn1", "layer1"):  # before the binding nothing needs to change
        mine.network.get_submodule(name).requires_grad_(False)
    config = TrainConfig(
        **{"steps": steps, "batch_size": 64, "per_stream": False, "fast_share": 0.8},
        **{"optimizer": "adamw", "lr": 2e-3, "mixup": 0.0, "distill": 0.9, "temperature": 4.0},
    )
    train(mine, batches, config, run_dir=out, teacher=pretrained(weights, 56))

    rows = []
    for depth in (56, 20):
        alone = mn.superpose(pretrained(weights, depth), num_streams=1, example=IMAGE)
        rows.append((f"ResNet-{depth}", alone, 1))
    rows += [("superposed ResNet-56", mine, active) for active in (1, streams)]
    return [
        (name, active, evaluate(model, tested, [active])[active], count_macs(model, active).plain)
        for name, model, active in rows
    ]


if __name__ == "__main__":
    folder, data, streams, steps = (*sys.argv[1:], "2", "200")[:4]
    found = main(Path(folder), data, int(streams), int(steps), 10_000, Path("runs/resnet56"))
    for name, active, measured, macs in found:
        print(f"{name}, {active} per pass: {measured.accuracy:.1%}, {macs / 1e6:.0f} million MACs")
