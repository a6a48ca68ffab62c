"""Train the candidates of ``compare`` alike: the steps that fit into the time, then every seed.

What is in the folder already is not trained again.
"""

import json
import math
import pickle
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mimonets._files import write_text
from mimonets._messages import first_line
from mimonets.checkpoints import save
from mimonets.evaluation.metrics import loss_of
from mimonets.experiments.candidates import Trainee
from mimonets.experiments.compare_data import CompareData, answer
from mimonets.experiments.sweep import ray_started
from mimonets.layers import recalibrate
from mimonets.models import SlimmableWideResNet
from mimonets.training import TrainConfig, train

Tell = Callable[[str], object]
Score = dict[str, Any]  # of one training: its seed and points, or an error
LEAST_STEPS = 20  # fewer teach nothing that is worth a comparison
TRIAL_STEPS = 3  # from which the time of all others is estimated
FOR_TRAINING = 0.6  # of the time; the rest is for exporting and measuring


def shared_settings(data: CompareData, lr: float, precision: str) -> TrainConfig:
    """Give the settings of all trainings but for steps and seed."""
    settings: dict[str, Any] = {
        **{"batch_size": data.batch_size, "per_stream": False, "precision": precision},
        **{"optimizer": "adamw", "lr": lr, "weight_decay": 1e-2, "mixup": 0.0},
        # Short trainings of any network: large gradients are clipped, no batch is skipped.
        **{"evaluate_every": 0, "grad_filter": None, "grad_clip": 1.0},
        **({"loss": data.loss} if isinstance(data.loss, str) else {}),
    }
    return TrainConfig(**settings)


@dataclass(frozen=True)
class Trainer:
    """Trains and tests candidates in a folder."""

    data: CompareData
    folder: Path
    teacher: nn.Module | None
    config: TrainConfig

    def count_steps(
        self, found: Sequence[Trainee], *, seeds: int, minutes: float, workers: int
    ) -> int:
        """Count the steps that fit into the time."""
        trained = [one for one in found if not one.is_trained]
        seconds = sum(map(self._seconds_per_step, trained)) / workers
        steps = int(FOR_TRAINING * 60 * minutes / max(seconds * seeds, 1e-9))
        if steps < LEAST_STEPS and trained:
            least = math.ceil(LEAST_STEPS * seconds * seeds / FOR_TRAINING / 6) / 10
            raise ValueError(
                f"minutes={minutes:g} is too short: {len(trained)} candidates with {seeds} seeds "
                f"get {steps} steps each. Give at least minutes={least:g}, or fewer seeds."
            )
        return steps

    def _seconds_per_step(self, one: Trainee) -> float:
        model, laps = one.build(self.data, 0).train(), []
        optimizer = torch.optim.AdamW(model.parameters())
        batch = next(iter(self.data.train.epoch(0)))
        for _ in range(TRIAL_STEPS):
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=self.config.precision == "bf16"):
                loss = loss_of(self.data.loss)(answer(model, batch), batch[-1])
                if self.teacher is not None:
                    with torch.no_grad():
                        answer(self.teacher, batch)
            loss.backward()
            optimizer.step()
            laps.append(time.perf_counter() - start)
        return statistics.median(laps)

    def run_of(self, one: Trainee, seed: int) -> Path:
        """Name the folder of one training."""
        return self.folder / "runs" / f"{one.folder}-{seed}"

    def scores_of(self, one: Trainee, seeds: Sequence[int]) -> list[Score]:
        """Read what trainings that are done have reached."""
        paths = [self.run_of(one, seed) / "test.json" for seed in seeds]
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]

    def train_all(
        self, found: Sequence[Trainee], seeds: Sequence[int], workers: int, tell: Tell
    ) -> dict[str, str]:
        """Train and test every candidate with every seed; say which failed with a seed, and why."""
        jobs = [(one, seed) for seed in seeds for one in found]
        missing = [(one, seed) for one, seed in jobs if not self.scores_of(one, [seed])]
        failed: dict[str, str] = {}
        started, form = time.monotonic(), ".1%" if self.data.judged_by == "accuracy" else ".4g"
        for number, ((one, seed), score) in enumerate(self._scores(missing, workers), 1):
            if "error" in score:
                failed[one.name] = score["error"]
            means = [format(point["mean"], form) for point in score.get("points", {}).values()]
            left = (time.monotonic() - started) / number * (len(missing) - number) / 60
            tell(
                f"{len(jobs) - len(missing) + number}/{len(jobs)} {one.name}, seed {seed}: "
                f"{score.get('error') or ', '.join(means)}; about {left:.1f} minutes of training "
                f"left"
            )
        return failed

    def _scores(
        self, jobs: Sequence[tuple[Trainee, int]], workers: int
    ) -> Iterator[tuple[tuple[Trainee, int], Score]]:
        """Do jobs one after the other, or several at a time in processes of Ray."""
        if workers == 1 or len(jobs) < 2:
            yield from ((job, self.train_one(*job)) for job in jobs)
            return
        import ray

        with ray_started(ray, workers):
            there = replace(self, folder=self.folder.resolve())
            sent = ray.put(ray.cloudpickle.dumps((there, jobs)))
            do = ray.remote(num_cpus=1)(_train_there)
            waiting = {do.remote(sys.path, sent, place): job for place, job in enumerate(jobs)}
            while waiting:
                (ready, *_), _ = ray.wait(list(waiting))
                yield waiting.pop(ready), ray.get(ready)

    def train_one(self, one: Trainee, seed: int) -> Score:
        """Train and test one candidate with one seed; an error is its result, others go on."""
        run, model = self.run_of(one, seed), one.build(self.data, seed)
        try:
            if one.is_trained:
                save(model, run / "model")
            else:
                self._train(model, run, seed)
        except (RuntimeError, ValueError) as error:
            return {"error": f"training failed: {first_line(error)}"}
        points = {name: point.number for name, point in one.points(model).items()}
        measured = self.data.score(model, list(points.values()))
        found = {name: measured[number] for name, number in points.items()}
        score = {"seed": seed, "points": found}
        write_text(run / "test.json", json.dumps(score))
        return score

    def _train(self, model: Any, run: Path, seed: int) -> None:
        own: dict[str, Any] = {"run_dir": run, "resume": True, "teacher": self.teacher}
        if not isinstance(self.data.loss, str):
            own["loss"] = self.data.loss
        train(model, self.data.shuffled(seed), replace(self.config, seed=seed), **own)
        if not isinstance(model, SlimmableWideResNet):
            # The running averages of short trainings lag behind the weights.
            batches = [batch[0] for batch in islice(self.data.train.epoch(0), 8)]
            recalibrate(model, batches, model.num_streams, shared=True)
            save(model, run / "model")


def _train_there(path: list[str], sent: bytes, place: int) -> Score:
    """Do one of the jobs in a process of Ray, which finds the user's own modules as we do."""
    sys.path[:] = path
    trainer, jobs = pickle.loads(sent)
    score: Score = trainer.train_one(*jobs[place])
    return score
