"""The networks of the serving benchmark: trained small, widened until a pass costs what it should.

A channel of a layer is copied k times and the weights that read it are divided by k (Net2Net, Chen
et al. 2016): the wide network answers as the small one did, bit for bit up to rounding, and costs
k^2 times as much. So there is a network with the accuracy of the shipped digits network in every
mode and the cost of a network for CIFAR-10, without days of training.

python benchmarks/serving_networks.py FOLDER
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

import mimonets as mn
from mimonets._inputs import InputSpec
from mimonets.recipes import load_recipe
from mimonets.recipes.execute import run_recipe, split_batches

FACTOR = 16  # of the shipped network's width: 254 MMAC a pass, twice a ResNet-56 on CIFAR-10
# At half the resolution a pass reads as many weights and so takes nearly as long: the small network
# is narrower, too, until it takes about a quarter of the time.
SMALL_FACTOR = 12
RECIPE = "digits-writers-wideresnet"


def widen(model: nn.Module, factor: int) -> nn.Module:
    """Copy every channel ``factor`` times; the answers stay as they are."""
    config = replace(
        model.config,
        width=model.config.width * factor,
        initial_width=model.config.initial_width * factor,
    )
    wide = type(model)(config).eval()
    reading = {
        f"{name}.weight"
        for name, module in wide.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    }
    weights = {}
    for name, small in model.state_dict().items():
        wanted = wide.state_dict()[name].shape
        times = [new // old for new, old in zip(wanted, small.shape, strict=True)]
        weights[name] = small.repeat(times) if times else small
        if name in reading:  # as many copies are added up
            weights[name] = weights[name] / times[1]
    wide.load_state_dict(weights)
    wide.input_spec = model.input_spec
    return wide


def test_images() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Give the test digits: raw pixels, standardised, and labels."""
    batches = split_batches(load_recipe("digits-writers-tiles-dynamic").data, "test")
    prepared = torch.cat([batch[0] for batch in batches])
    return batches.data.images, prepared, batches.data.labels


def plain(folder: Path, stride: int) -> nn.Module:
    """Train a plain network of the same width and depth, for the whole or half the resolution."""
    recipe = load_recipe(
        RECIPE,
        ["model.width=1", "model.initial_width=2", f"model.stem_stride={stride}"],
    )
    run_recipe(recipe, folder, resume=True)
    return mn.load(folder / "model")


def untrained(place: Path, name: str, depth: int, width: int) -> None:
    """Write a network for CIFAR-10, for timing only, and pixels to send to it."""
    if (place / f"{name}-samples.npz").exists():
        return
    model = mn.MIMOConv(
        mn.MIMOConvConfig(num_streams=4, depth=depth, width=width, image_size=32, num_classes=10)
    ).eval()
    mean, deviation = (125.0, 123.0, 114.0), (63.0, 62.0, 67.0)
    model.input_spec = InputSpec(kind="image", shape=(3, 32, 32), mean=mean, deviation=deviation)
    mn.export(model, place / name, options=mn.ExportOptions(tell=print))
    pixels = np.random.default_rng(0).integers(0, 256, size=(64, 3, 32, 32), dtype=np.uint8)
    np.savez(place / f"{name}-samples.npz", inputs=pixels)


def main(folder: str) -> None:
    """Write the exports and the samples into a folder."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    untrained(place, "cifar", depth=16, width=4)
    untrained(place, "cifar-paper", depth=28, width=10)  # the network of the paper's table 1
    raw, images, labels = test_images()
    np.savez(place / "samples.npz", inputs=raw.numpy(), labels=labels.numpy())
    networks = {
        "gears": mn.create("digits", pretrained=True),
        "big": plain(place / "runs" / "big", 1),
        "small": plain(place / "runs" / "small", 2),
    }
    for name, small in networks.items():
        wide = widen(small.eval(), SMALL_FACTOR if name == "small" else FACTOR)
        with torch.no_grad():
            difference = (wide(images) - small(images)).abs().max().item()
        assert difference < 1e-3, f"{name} answers differently by {difference}"
        options = mn.ExportOptions(tell=print)
        mn.export(wide, place / name, evaluation=[(images, labels)], options=options)


if __name__ == "__main__":
    main(sys.argv[1])
