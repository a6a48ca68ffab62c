"""The training loop, top to bottom. MIMONets, appendices D (MIMOConv) and F (MIMOFormer).

Devices, precision and communication between processes come from Lightning Fabric; the loop is
ours, so that what makes the method different stands in plain sight.
"""

import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from mimonets.evaluation.accuracy import Batches, evaluate
from mimonets.layers import recalibrate, untrained_modes
from mimonets.models import Model
from mimonets.training.batch import Batch, shard
from mimonets.training.config import TrainConfig
from mimonets.training.distillation import taught_loss, watching
from mimonets.training.launch import check_batch, check_fit, launch_fabric, seed_step, workplace
from mimonets.training.objective import count_right, penalty
from mimonets.training.progress import Bar, TrainingInterrupted, listening_for_stop
from mimonets.training.run_folder import RunFolder, resolved_recipe
from mimonets.training.schedule import plan_step
from mimonets.training.stability import averaged
from mimonets.training.state import TrainState

Row = dict[str, Any]


@dataclass(frozen=True)
class TrainResult:
    """What came out of a run."""

    history: list[Row]  # one row per epoch, as in metrics.jsonl
    final: dict[int, Row]  # what the final model does on the validation data, by active streams
    skipped: int  # batches left out by the gradient filter
    not_finite: int  # those of them whose gradient was not finite
    steps: int
    rank: int  # of this process; with several devices only 0 should print
    run_dir: Path
    model_dir: Path  # the final model, for mimonets.load
    best_dir: Path | None  # the model of the best validation accuracy


def train(
    model: Model,
    train_batches: Batches,
    config: TrainConfig,
    *,
    run_dir: str | os.PathLike[str],
    validation: Batches | None = None,
    resume: bool = False,
    recipe: dict[str, Any] | None = None,
    on_progress: Callable[[Row], object] | None = None,
) -> TrainResult:
    """Train a model in place and keep a record of it in ``run_dir``.

    Args:
        model: any model of this package, with its initial weights.
        train_batches: yields ``batch_size * num_streams`` inputs at a time (``batch_size`` with
            ``per_stream=False``); modes with fewer active streams use the first of them.
        run_dir: the run's folder, see :mod:`mimonets.training.run_folder`.
        validation: measured every ``evaluate_every`` epochs and at the end.
        resume: go on with the run in ``run_dir``, to the same weights as if it had never stopped;
            it starts from the beginning if there is none yet.
        recipe: what else decides the run, such as the data's settings; kept with it.
        on_progress: called with each row of metrics.

    Raises:
        TrainingDivergedError: too many batches were skipped.
        TrainingInterrupted: Ctrl-C or SIGTERM came; the state was saved.
    """
    check_fit(model, train_batches, config)
    fabric = launch_fabric(config)
    batches = shard(train_batches, fabric.global_rank, fabric.world_size)
    total_steps = config.total_steps(len(batches))
    modes = config.evaluate_modes or tuple(config.mode_shares(model.num_streams))

    run = RunFolder(run_dir, writes=fabric.is_global_zero)
    with fabric.rank_zero_first():
        run.open(resolved_recipe(model, config, recipe), resume=resume or fabric.global_rank > 0)
    state = TrainState(fabric, model, config, len(batches))
    saved = run.load_checkpoint() if resume else None
    if saved is not None:
        state.load_state_dict(saved)
    history = run.rewind(state.step)
    fabric.barrier()
    saved_at = time.monotonic()

    with (
        closing(run),
        workplace(model, config),
        listening_for_stop() as stop,
        Bar(state.step, total_steps, show=fabric.is_global_zero) as bar,
    ):
        while state.step < total_steps:
            epoch, start = divmod(state.step, len(batches))
            state.tally.start_clock()
            for data in batches.epoch(epoch, start):
                check_batch(data, model, config, last=(state.step + 1) % len(batches) == 0)

                # Mostly fast, sometimes slow; warm-ups come first.
                plan = plan_step(config, model, state.step, total_steps)
                seed_step(plan.seed + fabric.global_rank)
                batch = Batch.of(data, fabric.device, plan.inputs).mix(plan.share)
                if plan.warm_up == "retrieval":
                    batch = batch.naming_tokens()

                state.statistics.remember()
                pieces = batch.split(config.accumulate, plan.active_streams)
                batch_loss, right = torch.zeros(2, device=fabric.device)
                for piece in pieces:
                    last = piece is pieces[-1]
                    with (
                        fabric.no_backward_sync(state.network, enabled=not last),
                        watching(model if config.distill_features else None) as features,
                    ):
                        logits = state.network(
                            piece.inputs,
                            active_streams=plan.active_streams,
                            **piece.arguments(),
                            **plan.options,
                        )
                        teacher = None if plan.warm_up == "retrieval" else state.teacher
                        loss = taught_loss(logits, piece, config, teacher, features)
                        loss = loss * (piece.scored / max(1, batch.scored))
                        fabric.backward(loss + penalty(model, config) if last else loss)
                    batch_loss += loss.detach()
                    right += count_right(logits, piece)

                # Far above last epoch's mean, or not finite: this batch leaves no trace.
                norm = state.gradient_norm()
                if state.filter.accepts(float(norm)):
                    if config.grad_clip is not None:
                        torch.nn.utils.clip_grads_with_norm_(
                            state.parameters, config.grad_clip, norm
                        )
                    state.optimizer.step()
                    state.tally.add(batch_loss, right, batch)
                    if state.average is not None:
                        state.average.update()
                else:
                    state.statistics.restore()
                    state.optimizer.zero_grad()
                    state.optimizer.step()  # without gradients it changes nothing
                state.optimizer.zero_grad()
                state.step += 1
                if state.step < total_steps:
                    state.scheduler.step()

                if bar.due():
                    bar.show(state.step, *state.tally.read(), state.tally.speed())
                if state.step % len(batches) == 0 or state.step == total_steps:
                    break
                late = time.monotonic() - saved_at > config.checkpoint_seconds
                every = config.checkpoint_every
                if stop or late or (every is not None and state.step % every == 0):
                    run.save_checkpoint(state.state_dict())
                    saved_at = time.monotonic()
                if stop:
                    raise TrainingInterrupted(state.step, total_steps, str(run.folder))
            else:
                raise ValueError(f"The data ended before the {len(batches)} batches it promised.")

            row = end_epoch(fabric, state, epoch)
            bar.show(state.step, row["loss"], row["accuracy"], row["inputs_per_second"])
            due = config.evaluate_every and (epoch + 1) % config.evaluate_every == 0
            if validation is not None and (due or state.step == total_steps):
                row["validation"] = validate(fabric, state, validation, modes, run)
            run.log(row)
            history.append(row)
            if on_progress is not None and fabric.is_global_zero:
                on_progress(row)
            run.save_checkpoint(state.state_dict())
            saved_at = time.monotonic()
            if stop and state.step < total_steps:
                raise TrainingInterrupted(state.step, total_steps, str(run.folder))

        final = finish(fabric, state, config, batches, validation, modes)
    model_dir = run.save_model(model, "model")
    run.finish({"final": final, "steps": state.step, **skips(state)})
    fabric.barrier()
    best_dir = run.folder / "best"
    return TrainResult(
        history=history,
        final=final,
        **skips(state),
        steps=state.step,
        rank=fabric.global_rank,
        run_dir=run.folder,
        model_dir=model_dir,
        best_dir=best_dir if best_dir.exists() else None,
    )


def end_epoch(fabric: Any, state: TrainState, epoch: int) -> Row:
    """Sum up an epoch over all processes and start the next."""
    sums = state.tally.sums
    if fabric.world_size > 1:
        sums = fabric.all_reduce(sums.clone(), reduce_op="sum")
    loss, accuracy = state.tally.read(sums)
    skipped = state.filter.skipped
    row = {
        "epoch": epoch + 1,
        "step": state.step,
        "loss": loss,
        "accuracy": accuracy,
        "lr": state.lr,
        "skipped": skipped,
        "gradient_norm": state.filter.end_epoch(),
        "inputs_per_second": state.tally.speed() * fabric.world_size,
    }
    state.tally.clear()
    return row


def validate(
    fabric: Any, state: TrainState, validation: Batches, modes: tuple[int, ...], run: RunFolder
) -> dict[str, Row]:
    """Measure every mode, with averaged weights if there are any, and keep the best model."""
    found: dict[str, Row] = {}
    with averaged(state.average):
        if fabric.is_global_zero:
            measured = evaluate(state.model, validation, modes)
            found = {str(mode): result.as_dict() for mode, result in measured.items()}
            mean = sum(result["accuracy"] for result in found.values()) / len(found)
            if mean > state.best:
                state.best = mean
                run.save_model(state.model, "best")
    return fabric.broadcast(found)


def finish(
    fabric: Any,
    state: TrainState,
    config: TrainConfig,
    batches: Batches,
    validation: Batches | None,
    modes: tuple[int, ...],
) -> dict[int, Row]:
    """Make the final model: averaged weights, statistics for every mode; and measure it."""
    if state.average is not None:
        state.average.load_into_model()
    if config.recalibrate_batches and untrained_modes(state.model):
        some = islice(batches.epoch(0), config.recalibrate_batches)
        # One spoilt batch, which the filter skipped in training, would spoil the statistics.
        sound = [images for images, *_ in some if images.isfinite().all()]
        if sound:
            recalibrate(state.model, [images.to(fabric.device) for images in sound])
    final: dict[int, Row] = {}
    if validation is not None and fabric.is_global_zero:
        measured = evaluate(state.model, validation, modes)
        final = {mode: result.as_dict() for mode, result in measured.items()}
    return fabric.broadcast(final)


def skips(state: TrainState) -> dict[str, int]:
    """Count the batches that were left out."""
    return {"skipped": state.filter.total_skipped, "not_finite": state.filter.total_not_finite}
