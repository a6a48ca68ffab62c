"""One step, on a device without numbers: whatever mixes devices or waits for a value raises."""

import math
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

from mimonets import OperatingPoint
from mimonets.training.batch import Batch
from mimonets.training.state import TrainState
from mimonets.training.step import StepPlan, plan_step, prepare, take_step
from training.tiny import (
    TinyBatches,
    TinySequences,
    sequence_config,
    tiny_config,
    tiny_conv,
    tiny_datamux,
    tiny_former,
)

ONE = OperatingPoint(number=1, name="1 active", options={"active_streams": 1})


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


class Together:
    """Two processes in one: what each of them gathers is known beforehand."""

    device = torch.device("cpu")
    world_size = 2

    def __init__(self, rank, parts):
        self.global_rank, self.parts = rank, parts

    def all_gather(self, mine):
        if mine.ndim == 0:
            return torch.tensor([len(part[-1]) for part in self.parts])
        place = 1 if mine.dtype == torch.int64 else 0
        most = max(len(part[place]) for part in self.parts)
        return torch.stack(
            [
                F.pad(part[place], (0, 0) * (part[place].ndim - 1) + (0, most - len(part[place])))
                for part in self.parts
            ]
        )


class Alone:
    device = torch.device("cpu")
    global_rank, world_size = 0, 1


@pytest.mark.parametrize(("used", "sizes"), [(8, (8, 8)), (4, (8, 8)), (8, (7, 8)), (4, (7, 8))])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_processes_use_and_mix_the_inputs_that_one_would(used, sizes, share):
    torch.manual_seed(0)
    parts = [(torch.randn(size, 1, 2, 2), torch.randint(3, (size,))) for size in sizes]
    plan = StepPlan(point=ONE, grid=None, inputs=used, share=share, seed=7)
    both = tuple(torch.cat(part) for part in zip(*parts, strict=True))
    whole = StepPlan(point=ONE, grid=None, inputs=2 * used, share=share, seed=7)
    wanted = prepare(Alone(), both, whole, even=True)
    even = len(set(sizes)) == 1
    found = [prepare(Together(rank, parts), parts[rank], plan, even=even) for rank in range(2)]
    for name in ("inputs", "labels", *(["mixed_in"] if share < 1 else [])):
        joined = torch.cat([getattr(batch, name) for batch in found])
        assert torch.equal(joined, getattr(wanted, name)), name


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
