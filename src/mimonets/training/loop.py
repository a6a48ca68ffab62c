"""The training loop, top to bottom. MIMONets, appendices E (MIMOConv) and F (MIMOFormer).

Devices, precision and communication between processes come from Lightning Fabric; the loop is
ours, so that what makes the method different stands in plain sight. :mod:`mimonets.training.step`
has a single step.
"""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, NoReturn

from mimonets.data.interface import as_batches, on_device
from mimonets.evaluation.metrics import metrics_of
from mimonets.training.checks import check_batch, check_fit
from mimonets.training.config import TrainConfig
from mimonets.training.epoch_end import end_epoch, finish, slopes, validate
from mimonets.training.identity import Identity
from mimonets.training.launch import agree, launch_fabric, training_setup
from mimonets.training.progress import Bar, TrainingInterrupted, listening_for_stop
from mimonets.training.run_folder import Row, RunFolder, TrainResult
from mimonets.training.state import TrainState
from mimonets.training.step import take_step

CHECKPOINT_SECONDS = 600.0  # and at every epoch's end


def train(
    model: Any,
    train_batches: Any,
    config: TrainConfig,
    *,
    run_dir: str | os.PathLike[str],
    validation: Any = None,
    teacher: Any = None,
    loss: Any = None,
    metrics: Any = (),
    resume: bool = False,
    recipe: Mapping[str, Any] | None = None,
    on_progress: Callable[[Row], object] | None = None,
    logger: Any = None,
) -> TrainResult:
    """Train a model in place and keep a record of it in ``run_dir``.

    Args:
        model: any network that has ``num_streams`` and ``forward(inputs, active_streams=...)``.
        train_batches: batches, or a PyTorch ``DataLoader``, of ``batch_size * num_streams`` inputs
            at a time (``batch_size`` with ``per_stream=False``).
        run_dir: the run's folder, see :mod:`mimonets.training.run_folder`.
        validation: batches or a ``DataLoader``, measured every ``evaluate_every`` epochs and at the
            end, to choose the best model. Never the test data: a model meets those once, at the
            very end. Without it nothing is measured, and the last model is kept.
        teacher: a trained network to learn from, beside ``config.distill`` and its kin; for
            folders of ours there is ``config.teacher``. It is not kept with the run.
        loss: a function of answers and labels in place of ``config.loss``. Answers and labels may
            have any shape, and be tuples or dicts of tensors.
        metrics: measured on the validation data beside the loss: names of
            :data:`mimonets.evaluation.metrics.METRICS`, functions of answers and labels, or a dict
            of them. With a loss or metrics of your own, or labels that are no classes, the best
            model is the one with the smallest loss.
        resume: continue the run in ``run_dir``, to the same weights as if it had never stopped; it
            starts from the beginning if there is none yet.
        recipe: what else decides the run, such as the data's config; kept with it.
        on_progress: called with each row of metrics.
        logger: gets the metrics of every epoch, and the slopes of parametric ReLUs. Anything that
            keeps to ``lightning_fabric.loggers.Logger``; TensorBoard's files in ``run_dir`` without
            it.

    Raises:
        TrainingDivergedError: too many batches were skipped.
        TrainingInterrupted: Ctrl-C or SIGTERM came; the state was saved.
    """
    train_batches = as_batches(train_batches, config.seed)
    validation = None if validation is None else as_batches(validation)
    check_fit(model, train_batches, config, validation)
    fabric = launch_fabric(config, model)
    # Every process makes the whole batch, and takes its groups: mixup needs all inputs.
    batches = on_device(train_batches, fabric.device)
    run = RunFolder(run_dir, writes=fabric.is_global_zero, logger=logger)
    with closing(run), training_setup(model, config, fabric.device), listening_for_stop() as stop:
        with fabric.rank_zero_first():
            run.open(Identity.of(model, config, recipe), resume=resume)
        state = TrainState(fabric, model, config, len(batches), teacher, loss, metrics_of(metrics))
        if resume:
            restore(state, run)
        history = run.rewind(state.step)
        fabric.barrier()
        saved_at = time.monotonic()

        with Bar(state.step, state.total_steps, show=fabric.is_global_zero) as bar:
            while state.step < state.total_steps:
                epoch, start = divmod(state.step, len(batches))
                state.tally.start_clock()
                for data in batches.epoch(epoch, start):
                    check_batch(data, model, config, last=state.ends_epoch)
                    take_step(state, data)
                    run.begin()
                    if bar.due():
                        bar.show(state.step, *state.tally.read(), state.tally.speed())
                    if state.at_end_of_epoch:
                        break
                    due = time.monotonic() - saved_at > CHECKPOINT_SECONDS
                    stopping, saving = agree(fabric, bool(stop), due)
                    if stopping or saving:
                        run.save_checkpoint(state.state_dict())
                        saved_at = time.monotonic()
                    if stopping:
                        interrupt(state, run)
                else:
                    raise ValueError(
                        f"The data ended before the {len(batches)} batches it promised."
                    )

                row = end_epoch(state, epoch)
                every = config.evaluate_every
                due = every > 0 and (epoch + 1) % every == 0
                if validation is not None and (due or state.step == state.total_steps):
                    row["validation"] = validate(state, validation, train_batches, run)
                run.log(row, slopes=slopes(model), skipped_in_all=state.filter.total_skipped)
                history.append(row)
                bar.end_epoch(row)
                if on_progress is not None and fabric.is_global_zero:
                    on_progress(row)
                run.save_checkpoint(state.state_dict())
                saved_at = time.monotonic()
                (stopping,) = agree(fabric, bool(stop))
                if stopping and state.step < state.total_steps:
                    interrupt(state, run)

        result = finish(state, train_batches, run, history)
        fabric.barrier()
    return result


def interrupt(state: TrainState, run: RunFolder) -> NoReturn:
    """Leave training once the checkpoint is on disk, in all processes at the same step."""
    run.flush()
    state.fabric.barrier()
    raise TrainingInterrupted(
        state.step, state.total_steps, str(run.folder), rank=state.fabric.global_rank
    )


def restore(state: TrainState, run: RunFolder) -> None:
    """Go back to where the run in the folder was saved last, if it was."""
    saved = run.load_checkpoint()
    if saved is None:
        return
    length = saved.get("steps_per_epoch")
    if length != state.steps_per_epoch:
        raise ValueError(
            f"The run in {run.folder} was started with epochs of {length} batches, and these have "
            f"{state.steps_per_epoch}: use the same data and the same train.batch_size."
        )
    try:
        state.load_state_dict(saved)
    except (KeyError, RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(
            f"{run.checkpoint} does not hold the state of this run ({type(error).__name__}): it "
            f"was damaged or edited. Start again in another folder."
        ) from error
