"""A tiny model and tiny data in memory, for tests that train."""

import torch

from mimonets import (
    DataMUXFormer,
    DataMUXFormerConfig,
    MIMOConv,
    MIMOConvConfig,
    MIMOFormer,
    MIMOFormerConfig,
    SlimmableWideResNet,
    SlimmableWideResNetConfig,
)
from mimonets.training import TrainConfig


class TinyBatches:
    """Random batches, each decided by its epoch and number; ``inputs_of`` may spoil some."""

    num_classes = 3

    def __init__(self, count=4, size=8, *, shape=(1, 8, 8), spoil=(), before=lambda number: None):
        self.count, self.size, self.shape = count, size, shape
        self.spoil, self.before = set(spoil), before

    def __len__(self):
        return self.count

    def epoch(self, epoch, start=0):
        for number in range(start, self.count):
            step = epoch * self.count + number
            self.before(step)
            generator = torch.Generator().manual_seed(step)
            labels = torch.randint(3, (self.size,), generator=generator)
            x = torch.randn(self.size, *self.shape, generator=generator)
            x = x * 0.5 + labels.view(-1, 1, 1, 1)
            yield x * torch.nan if step in self.spoil else x, labels


class TinySequences(TinyBatches):
    """Sequences of 6 tokens, some padded; the class is what most tokens say."""

    def __init__(self, count=4, size=8, *, next_token=False, **options):
        super().__init__(count, size, **options)
        self.next_token = next_token

    def epoch(self, epoch, start=0):
        for number in range(start, self.count):
            self.before(epoch * self.count + number)
            generator = torch.Generator().manual_seed(epoch * self.count + number)
            labels = torch.randint(3, (self.size,), generator=generator)
            noise = torch.randint(3, (self.size, 6), generator=generator)
            tokens = torch.where(
                torch.rand(self.size, 6, generator=generator) < 0.6, labels[:, None], noise
            )
            mask = torch.arange(6) < torch.randint(3, 7, (self.size, 1), generator=generator)
            if self.next_token:
                labels = torch.cat([tokens[:, 1:], torch.full((self.size, 1), -100)], dim=1)
            yield tokens, mask, labels


def tiny_conv(**settings):
    torch.manual_seed(0)
    config = {"depth": 10, "width": 1, "initial_width": 1, "num_classes": 3, "num_streams": 2}
    return MIMOConv(MIMOConvConfig(**(config | {"in_channels": 1, "image_size": 8} | settings)))


def tiny_slimmable():
    torch.manual_seed(0)
    config = {"depth": 10, "width": 1, "num_classes": 3, "in_channels": 1, "image_size": 8}
    widths = {"widths": (1.0, 0.5, 0.5), "shrinks": (1, 1, 2)}
    return SlimmableWideResNet(SlimmableWideResNetConfig(**config, **widths))


def tiny_former(**settings):
    torch.manual_seed(0)
    config = {"vocab_size": 5, "max_length": 8, "num_classes": 3, "depth": 1, "heads": 2}
    config |= {"head_dim": 4, "dim": 8, "hidden_dim": 8, "num_features": 8, "grid": (2, 2)}
    return MIMOFormer(MIMOFormerConfig(**(config | settings)))


def tiny_datamux(**settings):
    torch.manual_seed(0)
    config = {"vocab_size": 5, "max_length": 8, "num_classes": 3, "depth": 1, "heads": 2}
    config |= {"head_dim": 4, "dim": 8, "hidden_dim": 8}
    return DataMUXFormer(DataMUXFormerConfig(**(config | settings)))


def tiny_config(**settings):
    small = {"epochs": 2, "batch_size": 4, "lr": 0.05, "accelerator": "cpu", "threads": 1}
    return TrainConfig(**(small | {"recalibrate_batches": 2} | settings))


def sequence_config(**settings):
    adam = {"optimizer": "adamw", "schedule": "linear-onecycle", "lr": 1e-2, "mixup": 0}
    return tiny_config(**(adam | {"batch_size": 2} | settings))


def same_weights(left, right):
    """Tell whether two models, or state dicts, agree to the last bit."""
    left, right = (
        thing if isinstance(thing, dict) else thing.state_dict() for thing in (left, right)
    )
    return left.keys() == right.keys() and all(
        torch.equal(left[name], right[name]) for name in left
    )
