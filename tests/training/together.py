"""Train a tiny model with the devices and the batch size of the command line."""

import sys

import torch

from mimonets.training import train
from training.tiny import (
    TinyBatches,
    TinySequences,
    sequence_config,
    tiny_config,
    tiny_conv,
    tiny_datamux,
    tiny_former,
    tiny_geared,
)


class Joined:
    """``times`` neighbouring batches of another object as one."""

    num_classes = 3

    def __init__(self, batches, times):
        self.batches, self.times = batches, times

    def __len__(self):
        return len(self.batches) // self.times

    def epoch(self, epoch, start=0):
        waiting = []
        for batch in self.batches.epoch(epoch, start * self.times):
            waiting.append(batch)
            if len(waiting) == self.times:
                yield tuple(torch.cat(parts) for parts in zip(*waiting, strict=True))
                waiting = []


def run(folder, kind, devices):
    times = 3 - devices  # one process takes the batches of two at once
    # After mixup, statistics would be measured on the first process's share of the batches.
    settings = {"epochs": 3, "devices": devices, "keep": "last", "recalibrate_mixed": False}
    if kind == "former":
        config = sequence_config(batch_size=2 * times, **settings)
        model, batches, check = tiny_former(dropout=0.0), TinySequences(6), TinySequences(2)
    elif kind == "datamux":
        config = sequence_config(batch_size=4 * times, retrieval=0.5, **settings)
        model, batches, check = tiny_datamux(dropout=0.0), TinySequences(6), TinySequences(2)
    elif kind == "geared":
        config = tiny_config(batch_size=4 * times, isometry=0, **settings)
        model, batches, check = tiny_geared(), TinyBatches(6, 4), TinyBatches(2)
    else:
        slow_inputs = "per-stream" if kind == "conv-cut" else "all"
        config = tiny_config(
            batch_size=4 * times, ema=0.9, fast_share=0.6, slow_inputs=slow_inputs, **settings
        )
        model, batches, check = tiny_conv(), TinyBatches(6), TinyBatches(2)
    joined = batches if times == 1 else Joined(batches, times)
    result = train(model, joined, config, run_dir=folder, validation=check)
    assert result.steps == 9


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]))
