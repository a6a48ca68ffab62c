"""Everything that a run carries from one step to the next, and that a checkpoint remembers."""

import math
import time
from typing import Any

import torch
from torch import Tensor, nn

from mimonets.training.batch import Batch
from mimonets.training.config import TrainConfig
from mimonets.training.distillation import make_teacher
from mimonets.training.footprint import fit_memory, free_memory
from mimonets.training.launch import make_fast
from mimonets.training.objective import Learner
from mimonets.training.schedule import make_optimizer, make_scheduler
from mimonets.training.stability import GradientFilter, Statistics, WeightAverage


class TrainState:
    """Model, optimiser, schedule, filter, average and counts of one run, and where it runs.

    Random numbers are not in it: those of a step follow from the seed and the step's number.
    """

    def __init__(
        self,
        fabric: Any,
        model: Any,
        config: TrainConfig,
        steps_per_epoch: int,
        teacher: nn.Module | None = None,
        loss: Any = None,
        metrics: Any = (),
    ) -> None:
        self.fabric = fabric
        self.config = config = fit_memory(model, config, free_memory(fabric.device))
        self.steps_per_epoch = steps_per_epoch
        self.total_steps = config.total_steps(steps_per_epoch)
        self.model = model  # for its penalties and weights
        learner = make_fast(Learner(model, config, loss), config, fabric.device)
        optimizer = make_optimizer(model, config)
        self.scheduler = make_scheduler(optimizer, config, self.total_steps)
        # The same model behind Fabric's device, precision and communication.
        self.learner, self.optimizer = fabric.setup(learner, optimizer)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.filter = GradientFilter(config)
        self.statistics = Statistics(model)
        self.average = None if config.ema is None else WeightAverage(model, config.ema)
        self.teacher = make_teacher(model, config, fabric.device, teacher)
        self.tally = Tally(fabric)
        self.step = 0
        self.loss, self.metrics = loss, metrics  # of the caller; None: the config's
        self.best = -math.inf  # validation accuracy, or loss below zero
        self.best_step = 0  # when it was reached; 0: nothing was measured
        self._seconds = 0.0  # before this process took over
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """How long training took so far, evaluation included, over all processes that resumed."""
        return self._seconds + time.perf_counter() - self._started

    @property
    def ends_epoch(self) -> bool:
        """Whether the step to come is the last one of its epoch."""
        return (self.step + 1) % self.steps_per_epoch == 0

    @property
    def at_end_of_epoch(self) -> bool:
        """Whether an epoch, or the whole training, is over with the steps that were taken."""
        return self.step % self.steps_per_epoch == 0 or self.step == self.total_steps

    @property
    def lr(self) -> float:
        """The learning rate of the step to come."""
        return float(self.scheduler.get_last_lr()[0])

    def gradient_norm(self) -> Tensor:
        """Norm of the gradient over all parameters."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        return torch.nn.utils.get_total_norm(gradients)

    def state_dict(self) -> dict[str, Any]:
        """Give everything as tensors and plain data; all processes must ask at the same step."""
        return {
            "steps_per_epoch": self.steps_per_epoch,
            "step": self.step,
            "best": self.best,
            "best_step": self.best_step,
            "seconds": self.seconds,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "filter": self.filter.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "tally": self.tally.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take everything of :meth:`state_dict` back."""
        self.step, self.best = int(state["step"]), float(state["best"])
        self.best_step = int(state["best_step"])
        self._seconds, self._started = state["seconds"], time.perf_counter()
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.filter.load_state_dict(state["filter"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.tally.load_state_dict(state["tally"])


class Tally:
    """Sums over the accepted batches of an epoch."""

    def __init__(self, fabric: Any) -> None:
        self.fabric = fabric
        # loss, right answers, answers; on the device, so that no step waits for them
        self.sums = torch.zeros(3, device=fabric.device)  # this process's share
        self.start_clock()

    def start_clock(self) -> None:
        """Measure speed from now on."""
        self.started = time.perf_counter()
        self.inputs = 0  # since then

    def clear(self) -> None:
        """Start a new epoch."""
        self.sums.zero_()

    def add(self, loss: Tensor, right: Tensor, batch: Batch) -> None:
        """Count one batch; ``loss`` and ``right`` are what :func:`learn` returns."""
        scored, processes = batch.scored, self.fabric.world_size
        counted = scored / processes if processes > 1 else scored
        self.sums += torch.stack([loss * scored, right, counted])
        self.inputs += len(batch)

    def total(self) -> Tensor:
        """Add up the sums of all processes, which must all ask for it."""
        if self.fabric.world_size == 1:
            return self.sums
        total: Tensor = self.fabric.all_reduce(self.sums.clone(), reduce_op="sum")
        return total

    def read(self, sums: Tensor | None = None) -> tuple[float, float]:
        """Mean loss and accuracy so far."""
        loss, right, scored = (self.sums if sums is None else sums).tolist()
        return (loss / scored, right / scored) if scored else (float("nan"), float("nan"))

    def speed(self) -> float:
        """Measure inputs per second, of all processes together."""
        return self.inputs / max(time.perf_counter() - self.started, 1e-9)

    def state_dict(self) -> dict[str, Any]:
        """Give the sums; the clock of a resumed run starts anew."""
        return {"sums": self.total()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the sums back; they go to the first process."""
        self.sums.copy_(state["sums"] if self.fabric.is_global_zero else 0 * state["sums"])
