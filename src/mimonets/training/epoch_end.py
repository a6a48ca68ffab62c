"""What is kept of a training: the numbers of an epoch, the best model, and the last one."""

import math
from collections.abc import Mapping
from itertools import islice
from statistics import fmean

from torch import nn

from mimonets.data.interface import Batches
from mimonets.evaluation.accuracy import PointScore, evaluate
from mimonets.layers import recalibrate, untrained_modes
from mimonets.models import fixed_at, operating_points
from mimonets.training.objective import judged_by_loss, note_values
from mimonets.training.run_folder import Row, RunFolder, TrainResult
from mimonets.training.stability import averaged
from mimonets.training.state import TrainState


def end_epoch(state: TrainState, epoch: int) -> Row:
    """Sum up an epoch over all processes and start the next."""
    loss, accuracy = state.tally.read(state.tally.total())
    skipped = state.filter.skipped
    row = {
        "epoch": epoch + 1,
        "step": state.step,
        "loss": loss,
        "accuracy": None if math.isnan(accuracy) else accuracy,  # where answers name no class
        "lr": state.lr,
        "skipped": skipped,
        "gradient_norm": state.filter.end_epoch(),
        "inputs_per_second": state.tally.speed(),
    }
    if slope := slopes(state.model):
        row["slope"] = fmean(slope.values())  # of parametric ReLUs
    state.tally.clear()
    return row


def validate(
    state: TrainState, validation: Batches, batches: Batches, run: RunFolder
) -> dict[str, Row]:
    """Measure every mode, with averaged weights if there are any, and keep the best model."""
    fabric, config = state.fabric, state.config
    shares = config.mode_shares(state.model.num_streams)
    points = operating_points(state.model)
    modes = tuple(point.number for point in points if point.inputs_per_pass in shares)
    found, mean = dict[str, Row](), 0.0
    state.statistics.remember()
    with averaged(state.average):
        calibrate(state, batches, modes)
        if fabric.is_global_zero:
            measured = _measure(state, validation, modes)
            found = {str(mode): result.as_dict() for mode, result in measured.items()}
            goals = [
                one["accuracy"] if "accuracy" in one else -one["loss"] for one in found.values()
            ]
            mean = sum(goals) / len(goals)
            if mean > state.best:
                run.save_model(state.model, "best")
        found, mean = fabric.broadcast((found, mean))
    state.statistics.restore()
    if mean > state.best:  # the same on all processes
        state.best, state.best_step = mean, state.step
    return found


def _measure(
    state: TrainState, validation: Batches, modes: tuple[int, ...]
) -> Mapping[int, PointScore]:
    """Measure accuracy where inputs have one right class, else the loss and the metrics asked."""
    config, loss = state.config, state.loss
    labels = next(iter(validation.epoch(0)))[-1]
    if not judged_by_loss(config, loss, state.metrics, labels):
        return evaluate(state.model, validation, modes)
    loss = config.loss if loss is None else loss
    return evaluate(state.model, validation, modes, loss=loss, metrics=state.metrics)


def calibrate(state: TrainState, batches: Batches, modes: tuple[int, ...] | None = None) -> None:
    """Measure batch-norm statistics for the modes that are not trained, or those of them given.

    After mixup all modes are measured, on unmixed inputs: running statistics describe mixtures,
    which nobody asks about.
    """
    streams, config = state.model.num_streams, state.config
    mixed = config.mixup > 0
    trained = set(config.mode_shares(streams)) - set(untrained_modes(state.model))
    trained = set() if mixed else trained
    missing = [m for m in range(1, streams + 1) if m not in trained and m in (modes or (m,))]
    wanted = config.recalibrate_batches
    if not missing or not wanted:
        return
    # One spoilt batch, which the filter skipped in training, would spoil the statistics.
    some = [images for images, *_ in islice(batches.epoch(0), wanted)]
    sound = [images.to(state.fabric.device) for images in some if images.isfinite().all()]
    steps = [images for images in sound if len(images) >= max(missing)]
    if not steps:
        return
    points = operating_points(state.model) if mixed else ()
    for network in dict.fromkeys(fixed_at(state.model, point) for point in points) or [state.model]:
        recalibrate(network, steps, missing, shared=mixed)


def finish(state: TrainState, batches: Batches, run: RunFolder, history: list[Row]) -> TrainResult:
    """Write the last model and the best one, with statistics for every mode; hand over the kept."""
    model, fabric, config = state.model, state.fabric, state.config
    if state.average is not None:
        state.average.load_into_model()
    if history and history[-1]["accuracy"] is None:
        note_values(model)
    keep = config.keep or ("best" if state.best_step else "last")
    weights = {"model": {name: value.clone() for name, value in model.state_dict().items()}}
    if state.best_step == state.step:
        weights["best"] = weights["model"]
    elif state.best_step:
        weights["best"] = fabric.broadcast(run.load_weights("best") if run.writes else None)
    for name in sorted(weights, key=lambda name: name == ("best" if keep == "best" else "model")):
        model.load_state_dict(weights[name])
        calibrate(state, batches)
        run.save_model(model, name)
    kept_at = state.best_step if keep == "best" else state.step
    kept = next((row for row in history if row["step"] == kept_at), {})
    measured = kept.get("validation", {})
    result = TrainResult(
        history=history,
        final={int(mode): row for mode, row in measured.items()},
        keep=keep,
        steps=state.step,
        skipped=state.filter.total_skipped,
        not_finite=state.filter.total_not_finite,
        seconds=round(state.seconds, 3),
        slopes=slopes(model),
        run_dir=run.folder,
        rank=fabric.global_rank,
    )
    run.finish(result)
    return result


def slopes(model: nn.Module) -> dict[str, float]:
    """Mean slope of every parametric ReLU, layer by layer."""
    return {
        name: float(module.weight.detach().mean())
        for name, module in model.named_modules()
        if isinstance(module, nn.PReLU)
    }
