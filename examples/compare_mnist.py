r"""Does it pay with sixteen digits per pass? A WideResNet on MNIST, against smaller ones.

MNIST is fetched into the cache of mimonets, if it is not there:

mimonets compare examples/compare_mnist.py:make --data examples/compare_mnist.py:loaders \
    --sibling "a quarter as wide=examples/compare_mnist.py:narrow" \
    --sibling "stride 4=examples/compare_mnist.py:coarse" \
    --streams 16 --macs 0.92e6 --steps 400 --no-int8
"""

import torch.nn.functional as F

import mimonets as mn
from mimonets.data import AugmentConfig, DataConfig, ImageBatches, ImageSet, load_data

SIZES = {"depth": 10, "width": 1, "in_channels": 1, "num_classes": 10, "image_size": 32}


def make() -> mn.WideResNet:
    """Make the network as it is: 12 MMAC per digit."""
    return mn.WideResNet(mn.WideResNetConfig(**SIZES))


def narrow() -> mn.SlimmableWideResNet:
    """Make what costs as much as sixteen digits per pass: a quarter of the width."""
    return mn.SlimmableWideResNet(
        mn.SlimmableWideResNetConfig(**SIZES, widths=(0.25,), shrinks=(1,))
    )


def coarse() -> mn.WideResNet:
    """Make what costs as much, too: maps of a quarter of the height and width."""
    return mn.WideResNet(mn.WideResNetConfig(**SIZES, stem_stride=4))


def padded(digits: ImageSet) -> ImageSet:
    """Put the digits on 32x32 pixels, which 4x4 tiles divide after every stage."""
    return ImageSet(F.pad(digits.images, (2, 2, 2, 2)), digits.labels, 10, digits.name)


def loaders() -> tuple[ImageBatches, ImageBatches]:
    """Give the digits in batches: those to train on, shifted by up to a pixel, and the test."""
    splits = load_data(DataConfig(name="mnist", validation=0)).read()
    shifted = AugmentConfig(padding=1, flip=False)
    options = {"augment": shifted, "shuffle": True, "drop_last": True}
    train = ImageBatches(padded(splits.train), 128, **options)
    return train, ImageBatches(padded(splits.test), 128, statistics=train.statistics)
