"""Does it pay for a pretrained ResNet-56? Against ResNet-20, at a third of the cost.

python examples/compare_resnets.py WEIGHTS DATA
WEIGHTS is a folder with resnet20.safetensors and resnet56.safetensors, DATA one with CIFAR-10.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from resnet import pretrained  # the networks of He et al., beside this file

import mimonets as mn
from mimonets.data import AugmentConfig, DataConfig, ImageBatches, load_data

MEAN, DEVIATION = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]) * 255


def main(weights, data, out="runs/compare-resnets", tests=1000, depths=(56, 20), **budget):
    """Distil keys, tiles and half resolution from ResNet-56, and compare with ResNet-20."""
    splits = load_data(DataConfig(name="cifar10", dir=data, download=False))
    options = {"batch_size": 64, "statistics": (MEAN, DEVIATION)}
    augment = {"augment": AugmentConfig(), "shuffle": True, "drop_last": True}
    batches = ImageBatches(splits.train, **augment, **options)
    tested = ImageBatches(splits.test.subset(torch.arange(tests)), **options)
    large, small = (partial(pretrained, Path(weights), depth) for depth in depths)
    sibling = {f"ResNet-{depths[1]}": small}
    settings = {"out": out, "macs": 42e6, "siblings": sibling, "tell": print}
    return mn.compare(large, (batches, tested), **settings, **budget)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    print(main(*sys.argv[1:], steps=60, seeds=3, int8=False)["advice"])
