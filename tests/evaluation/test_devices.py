"""A forgotten ``.to(device)`` fails here, without a GPU: on the meta device."""

import pytest
import torch

from mimonets import MIMOConv, MIMOConvConfig, MIMOFormer, MIMOFormerConfig
from mimonets.data import AugmentConfig, ImageBatches, ImageSet, SequenceBatches, SequenceSet
from mimonets.data.batches import _moved, evaluation_batches
from mimonets.evaluation.accuracy import answers
from mimonets.models import eval_mode, find_point

IMAGES = ImageSet(torch.zeros(10, 1, 8, 8, dtype=torch.uint8), torch.arange(10) % 3, 3, "grey")
TOKENS = SequenceSet(
    torch.ones(7, 12, dtype=torch.uint8), torch.full((7,), 12), torch.arange(7) % 3, 5, 3, "text"
)
CONV = MIMOConvConfig(
    depth=10, width=1, initial_width=1, num_classes=3, num_streams=4, in_channels=1, image_size=8
)
FORMER = MIMOFormerConfig(
    **{"vocab_size": 5, "max_length": 12, "num_classes": 3, "depth": 1, "dim": 8, "heads": 1},
    **{"head_dim": 8, "hidden_dim": 8, "num_features": 8, "grid": (2, 2)},
)


def image_batches(device, **options):
    return ImageBatches(IMAGES, 4, device=device, **options)


def sequence_batches(device, **options):
    return SequenceBatches(TOKENS, 4, device=device, **options)


@pytest.mark.parametrize("make", [image_batches, sequence_batches])
def test_batches_are_made_where_they_are_wanted(make):
    options = {"augment": AugmentConfig(padding=1)} if make is image_batches else {}
    for batch in make("meta", shuffle=True, **options).epoch(0):
        assert {part.device.type for part in batch} == {"meta"}


@pytest.mark.parametrize("mode", [1, 3, 4])
@pytest.mark.parametrize("where", ["cpu", "meta"])
@pytest.mark.parametrize("data", [IMAGES, TOKENS])
def test_evaluation_runs_on_the_models_device_and_reads_nothing_back(data, where, mode):
    kind, config = (MIMOConv, CONV) if data is IMAGES else (MIMOFormer, FORMER)
    with torch.device("meta"):
        model = kind(config)
    with eval_mode(model):
        logits, labels = answers(
            model, evaluation_batches(data, device=where), find_point(model, mode)
        )
    assert logits.device.type == labels.device.type == "meta"
    assert logits.shape == (len(data), 3)


class Part:
    """A tensor that remembers what is done to it."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def pin_memory(self):
        self.log.append(f"pin {self.name}")
        return self

    def to(self, device, *, non_blocking=False):
        self.log.append(f"{'start' if non_blocking else 'finish'} {self.name} to {device}")
        return self


def test_batches_for_cuda_are_pinned_and_copied_one_ahead():
    log = []
    for (part,) in _moved(((Part(name, log),) for name in "abc"), torch.device("cuda")):
        log.append(f"use {part.name}")
    assert log == [
        *("pin a", "start a to cuda", "pin b", "start b to cuda", "use a"),
        *("pin c", "start c to cuda", "use b", "use c"),
    ]


@pytest.mark.parametrize(
    ("shape", "size"), [((300, 42), 256), ((300, 1024), 64), ((20, 2, 4000), 8), ((3, 100_000), 1)]
)
def test_evaluation_batches_hold_fewer_long_sequences(shape, size):
    data = SequenceSet(
        torch.ones(shape, dtype=torch.uint8),
        torch.full(shape[:-1], shape[-1]),
        torch.zeros(shape[0], dtype=torch.int64),
        *(2, 2, "noise"),
    )
    assert evaluation_batches(data).batch_size == size
