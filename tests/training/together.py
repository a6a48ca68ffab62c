"""Tiny models to train with several devices."""

import torch
from torch import nn

from mimonets import superpose
from mimonets.training import train
from training.tiny import (
    TinyBatches,
    TinySequences,
    sequence_config,
    tiny_config,
    tiny_conv,
    tiny_datamux,
    tiny_former,
    tiny_slimmable,
)


def tiny_superposed():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3)]
    layers += [nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)]
    return superpose(
        nn.Sequential(*layers), num_streams=2, bind_after="2", unbind_before="8",
        example=torch.randn(1, 1, 8, 8),
    )  # fmt: skip


class Uneven(TinyBatches):
    """The last batch of an epoch is short: its groups cannot be shared, or not evenly."""

    def epoch(self, epoch, start=0):
        for number, batch in enumerate(super().epoch(epoch, start), start):
            size = (5 if epoch % 2 else 6) if number == self.count - 1 else self.size
            yield tuple(part[:size] for part in batch)


# What is trained -> model, batches of 16 inputs, config.
KINDS = {
    "conv": lambda **s: (
        tiny_conv(), TinyBatches(1, 16), tiny_config(batch_size=8, ema=0.9, fast_share=0.6, **s)
    ),
    "conv-cut": lambda **s: (
        tiny_conv(), Uneven(2, 16),
        tiny_config(batch_size=8, fast_share=0.6, slow_inputs="per-stream", accumulate=2, **s),
    ),
    "former": lambda **s: (
        tiny_former(dropout=0.0), TinySequences(1, 16), sequence_config(batch_size=4, **s)
    ),
    "next-token": lambda **s: (
        tiny_former(dropout=0.0, head="next_token", causal=True),
        TinySequences(1, 16, next_token=True), sequence_config(batch_size=4, **s),
    ),
    "superposed": lambda **s: (
        tiny_superposed(), Uneven(2, 16), tiny_config(batch_size=8, isometry=0, **s)
    ),
    "slimmable": lambda **s: (
        tiny_slimmable(), TinyBatches(1, 16), tiny_config(batch_size=16, isometry=0, **s)
    ),
    "datamux": lambda **s: (
        tiny_datamux(dropout=0.0), TinySequences(1, 16),
        sequence_config(batch_size=8, retrieval=0.5, **s),
    ),
}  # fmt: skip


def run(folder, kind, devices):
    """Train 20 steps; metrics are of one step each, or two."""
    model, batches, config = KINDS[kind](steps=20, devices=devices, evaluate_every=0, keep="last")
    check = None if kind == "next-token" else batches
    return model, train(model, batches, config, run_dir=folder, validation=check)
