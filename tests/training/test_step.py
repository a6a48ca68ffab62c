"""One step, on a device without numbers: whatever mixes devices or waits for a value raises."""

import math
from contextlib import nullcontext

import pytest
import torch

from mimonets.training.batch import Batch
from mimonets.training.state import TrainState
from mimonets.training.step import plan_step, take_step
from training.tiny import (
    TinyBatches,
    TinySequences,
    sequence_config,
    tiny_config,
    tiny_conv,
    tiny_datamux,
    tiny_former,
)


class OnMeta:
    """What a step asks of Fabric, on the meta device."""

    device = torch.device("meta")
    global_rank, world_size, is_global_zero = 0, 1, True

    def setup(self, model, optimizer):
        return model, optimizer

    def no_backward_sync(self, module, enabled):
        return nullcontext()

    def autocast(self):
        return nullcontext()

    def backward(self, loss):
        loss.backward()


class Undecided:
    """A filter that accepts everything without looking: the one value that a step waits for."""

    asked = 0

    def judge(self, norm):
        assert norm.is_meta
        self.asked += 1
        return math.inf


MAKERS = {
    "mimoconv": (tiny_conv, {"ema": 0.9, "fast_share": 0.5}),
    "squared error": (tiny_conv, {"loss": "squared_error", "label_smoothing": 0.1}),
    "in parts": (tiny_conv, {"accumulate": 2, "grad_clip": 1.0}),
    "mimoformer": (tiny_former, {"accumulate": 2, "exact": 0.25, "solo": 0.25}),
    "next token": (lambda: tiny_former(head="next_token", causal=True), {"accumulate": 2}),
    "datamux": (tiny_datamux, {"retrieval": 0.5, "batch_size": 4}),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_whole_step_stays_on_the_device_and_waits_once(name, monkeypatch):
    make, settings = MAKERS[name]
    sequences = make not in (tiny_conv,)
    config = (sequence_config if sequences else tiny_config)(**settings)
    with torch.device("meta"):
        model = make().train()
    state = TrainState(OnMeta(), model, config, steps_per_epoch=2)
    state.filter = Undecided()
    data = TinySequences(next_token=name == "next token") if sequences else TinyBatches()
    # Batches come from the CPU; a copy to the device is all that is allowed.
    for batch in (*data.epoch(0), *data.epoch(1)):
        if state.step < state.total_steps:
            take_step(state, batch)
    assert state.step == state.total_steps == state.filter.asked == 4
    assert all(parameter.is_meta for parameter in model.parameters())
    assert state.tally.sums.is_meta


def test_a_forgotten_device_and_a_hidden_wait_are_noticed():
    with torch.device("meta"):
        model = tiny_conv().train()
    images, _ = next(TinyBatches().epoch(0))
    with pytest.raises((RuntimeError, NotImplementedError)):
        model(images)
    with pytest.raises((RuntimeError, NotImplementedError)):
        float(model(images.to("meta")).sum())


@pytest.mark.parametrize("processes", [2, 3, 4])
@pytest.mark.parametrize(("size", "group"), [(12, 1), (12, 3), (16, 4), (14, 4), (4, 2), (1, 1)])
def test_processes_share_whole_groups_or_do_the_same(size, group, processes):
    batch = Batch(torch.arange(size), torch.arange(size))
    parts = [batch.part_of(rank, processes, group) for rank in range(processes)]
    if size % group or size // group < processes:
        assert parts == [None] * processes
        return
    assert torch.equal(torch.cat([part.inputs for part in parts]), batch.inputs)
    assert all(len(part) and len(part) % group == 0 for part in parts)
    assert max(map(len, parts)) - min(map(len, parts)) <= group


@pytest.mark.parametrize(("width", "wanted"), [(5, 8), (8, 8), (9, 16)])
def test_widened_sequences_are_padded_and_not_scored(width, wanted):
    tokens, mask = torch.ones(2, width, dtype=torch.long), torch.ones(2, width, dtype=torch.bool)
    batch = Batch(tokens, tokens, mask).widened(8)
    assert batch.inputs.shape == batch.mask.shape == batch.labels.shape == (2, wanted)
    assert int(batch.mask.sum()) == int(batch.scored) == 2 * width
    plain = Batch(torch.ones(2, 1, 5, 5), torch.ones(2))
    assert plain.widened(8) is plain


def test_partners_are_what_version_0_1_0_drew():
    images, labels = next(TinyBatches().epoch(0))
    torch.manual_seed(5)
    order = torch.randperm(8)
    mixed = Batch(images, labels).mix(0.4, seed=5)
    assert torch.equal(mixed.mixed_in, labels[order])
    assert torch.equal(mixed.inputs, torch.lerp(images[order], images, 0.4))


def test_every_mode_uses_the_whole_batch_as_the_authors_do():
    model = tiny_conv(num_streams=4)
    for settings, wanted in (
        ({}, {1: 16, 4: 16}),
        ({"slow_inputs": "per-stream"}, {1: 4, 4: 16}),
        ({"per_stream": False}, {1: 4, 4: 4}),
    ):
        config = tiny_config(fast_share=0.5, **settings)
        plans = [plan_step(config, model, step, 50) for step in range(50)]
        assert {plan.active_streams: plan.inputs for plan in plans} == wanted
