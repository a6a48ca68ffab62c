"""One optimiser step: what it does is decided from its number, then done.

The first steps may take a simpler way to run, a warm-up. Each warm-up has a fraction of all steps.
Retrieval (as in DataMUX), exact and solo follow one another; the curriculum, half of the grid, runs
beside them from the start.
"""

import math
import random
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mimonets._operating_point import OperatingPoint
from mimonets.layers.batch_norm import own_statistics
from mimonets.models import operating_points
from mimonets.training.batch import Batch
from mimonets.training.config import TrainConfig
from mimonets.training.state import TrainState

WIDTHS = 8  # of sequences when compiled: each has a graph of its own

Grid = tuple[int, int]


@dataclass(frozen=True)
class StepPlan:
    """What one step does with its batch."""

    point: OperatingPoint
    grid: Grid | None  # a smaller grid than the model's, during the curriculum
    inputs: int  # how many of the batch are used
    share: float  # of each input in its mixture; 1 is pure
    seed: int  # for everything else that is random: partners and dropout
    warm_up: str | None = None  # the simpler way to run that this step takes

    @property
    def active_streams(self) -> int:
        """How many inputs share a pass."""
        return self.point.inputs_per_pass

    def warming_up(self, model: Any) -> AbstractContextManager[None]:
        """Let the model run as this step wants it; most steps ask nothing of it."""
        if self.warm_up is None and self.grid is None:
            return nullcontext()
        return model.warming_up(self.warm_up, grid=self.grid)


def plan_step(config: TrainConfig, model: Any, step: int, total_steps: int) -> StepPlan:
    """Decide the mode of step number ``step`` (counted from 0): the same on every process.

    Everything random is drawn from the step's number and the seed, so a run that was stopped and
    resumes draws the same.

    Batches hold ``batch_size * num_streams`` inputs, and every mode uses all of them, as the
    authors do: with A active streams that is N / A times as many superpositions. With
    ``slow_inputs="per-stream"`` a mode uses the first ``batch_size * A`` inputs, so that equally
    many superpositions pass in every mode. With ``per_stream=False`` a batch holds ``batch_size``
    inputs, and all are used.
    """
    rng = random.Random(f"{config.seed}/{step}")
    shares = config.mode_shares(model.num_streams)
    active = rng.choices(list(shares), list(shares.values()))[0]
    share = rng.betavariate(config.mixup, config.mixup) if config.mixup else 1.0
    grid = grid_at(config, model, step, total_steps)
    if grid is not None:
        active = min(active, grid[0] * grid[1])
    streams = active if config.slow_inputs == "per-stream" else model.num_streams
    inputs = config.batch_size * (streams if config.per_stream else 1)
    warm_up = warm_up_at(config, step, total_steps)
    seed = rng.getrandbits(62)
    # A slimmable network has several points with as many inputs per pass: all are trained alike.
    point = rng.choice([p for p in operating_points(model) if p.inputs_per_pass == active])
    return StepPlan(point, grid, inputs, share, seed, warm_up)


def warm_up_at(config: TrainConfig, step: int, total_steps: int) -> str | None:
    """Name the warm-up that a step belongs to; None once all are over.

    >>> [warm_up_at(TrainConfig(exact=0.5, solo=0.25), step, 4) for step in range(4)]
    ['exact', 'exact', 'solo', None]
    """
    end = 0.0
    for name, fraction in config.warm_ups.items():
        end += fraction
        if step < end * total_steps:
            return name
    return None


def grid_at(config: TrainConfig, model: Any, step: int, total_steps: int) -> Grid | None:
    """Halve both sides of the model's grid while the curriculum lasts; None: the whole grid."""
    if step >= config.curriculum * total_steps:
        return None
    m, n = model.config.grid
    return max(1, m // 2), max(1, n // 2)


def take_step(state: TrainState, data: tuple[Tensor, ...]) -> None:
    """Learn from one batch, or skip it if its gradient is far too large."""
    config = state.config
    # Mostly fast, sometimes slow; warm-ups come first.
    plan = plan_step(config, state.model, state.step, state.total_steps)
    seed_step(plan.seed + state.fabric.global_rank)
    batch = prepare(state, data, plan)

    state.statistics.remember()
    with plan.warming_up(state.model):
        loss, right = learn(state, plan, batch)

    norm = state.gradient_norm()
    most = min(state.filter.judge(norm), config.grad_clip or math.inf)
    if most:
        if most < math.inf:
            torch.nn.utils.clip_grads_with_norm_(state.parameters, most, norm)
        state.optimizer.step()
        state.tally.add(loss, right, batch)
        if state.average is not None:
            state.average.update()
    else:
        # Skip the batch: no update, batch-norm statistics restored.
        state.statistics.restore()
        state.optimizer.zero_grad()
        state.optimizer.step()  # without gradients it changes nothing
    state.optimizer.zero_grad()
    state.step += 1
    if state.step < state.total_steps:
        state.scheduler.step()


def prepare(state: TrainState, data: tuple[Tensor, ...], plan: StepPlan) -> Batch:
    """Take the batch to the device: as many inputs as the mode uses, mixed."""
    batch = Batch.of(data, state.fabric.device)[: plan.inputs].mix(plan.share, plan.seed)
    if plan.warm_up == "retrieval":
        batch = batch.naming_tokens()
    longest = getattr(getattr(state.model, "config", None), "max_length", None)
    if state.config.compile and longest is not None:
        batch = batch.widened(-(-longest // WIDTHS))
    return batch


def learn(state: TrainState, plan: StepPlan, batch: Batch) -> tuple[Tensor, Tensor]:
    """Run the network forwards and backwards, in parts; returns mean loss and right answers.

    With several processes both are this one's share: their sums are those of the whole batch.
    """
    fabric, config = state.fabric, state.config
    processes, group = fabric.world_size, plan.active_streams
    teacher = state.teacher
    if plan.warm_up == "retrieval" or (teacher and not teacher.teaches(group)):
        teacher = None
    pieces = batch.split(int(config.accumulate), group)
    total, right = torch.zeros(2, device=fabric.device)
    for piece in pieces:
        last = piece is pieces[-1]
        mine = piece if processes == 1 else piece.part_of(fabric.global_rank, processes, group)
        alone = mine is None  # too little to share: every process does the same
        mine = piece if mine is None else mine
        weight = None
        if len(pieces) > 1 or processes > 1:  # gradients are averaged over processes
            weight = mine.scored / batch.scored.clamp_min(1) * (1 if alone else processes)
        with fabric.autocast():
            taught = None if teacher is None else teacher.answer(mine)
        with (
            own_statistics() if alone else nullcontext(),
            fabric.no_backward_sync(state.learner, enabled=not last),
        ):
            objective, loss, correct = state.learner(
                mine.tensors(), plan.point.options, taught, weight, penalised=last
            )
            fabric.backward(objective)
        total += loss / processes if processes > 1 else loss
        right += correct / processes if alone else correct
    return total, right


def seed_step(seed: int) -> None:
    """Seed the generators that dropout draws from."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
