"""compare(): does it pay for my network and my data? Candidates trained alike, a table, advice.

What one could run instead takes part on equal terms: the network as it is, the network on smaller
inputs, and networks that the user names. The advice may well be not to superpose.
"""

import copy
import json
import math
import pickle
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimonets._answers import each, parts_of
from mimonets._extras import need
from mimonets._files import write_text
from mimonets._inputs import InputSpec
from mimonets._messages import first_line
from mimonets._operating_point import OperatingPoint
from mimonets._seeds import wilson_interval
from mimonets.checkpoints import load, save
from mimonets.data import DataConfig, ImageBatches
from mimonets.data.interface import Batches, as_batches
from mimonets.data.registry import load_data
from mimonets.evaluation import Contender, count_macs, peak_memory, race
from mimonets.evaluation.accuracy import evaluate
from mimonets.evaluation.metrics import Measure, has_classes, loss_of
from mimonets.evaluation.provenance import environment
from mimonets.experiments.advice import advise, interval, plot
from mimonets.experiments.sweep import ray_started
from mimonets.inference import Engine, ExportOptions, export
from mimonets.layers import recalibrate
from mimonets.models import (
    SlimmableWideResNet,
    SlimmableWideResNetConfig,
    WideResNet,
    eval_mode,
    fixed_at,
    operating_points,
    superpose,
)
from mimonets.models.surgery import answer_in
from mimonets.recipes.execute import image_spec
from mimonets.training import TrainConfig, TrainingDivergedError, train

Make = Callable[[], nn.Module]
Tell = Callable[[str], object]
LEAST_STEPS = 20  # fewer teach nothing that is worth a comparison
TRIAL_STEPS = 3  # from which the time of all others is estimated
FOR_TRAINING = 0.6  # of the time; the rest is for exporting and measuring
MOST_ITEMS = 2000  # of the test data, on which int8 is compared with float32
RUNTIMES = ("onnxruntime", "openvino", "onnxruntime-int8", "openvino-int8")
AS_IT_IS = "as it is"


@dataclass(frozen=True)
class CompareData:
    """Batches to train and to test on, alike for all candidates, and what is to be small."""

    train: Batches
    test: Batches
    batch_size: int
    spec: InputSpec | None = None
    loss: str | Measure = "cross_entropy"

    @property
    def first(self) -> tuple[Any, ...]:
        """The first batch of the test data."""
        return next(iter(self.test.epoch(0)))

    @property
    def example(self) -> Tensor:
        """Two inputs."""
        example: Tensor = self.first[0][:2]
        return example

    @property
    def judged_by(self) -> str:
        """What decides: "accuracy", or the "loss" where inputs have no class."""
        labels = self.first[-1]
        is_class = has_classes(labels) and labels.ndim == 1 and self.loss != "binary"
        return "accuracy" if is_class else "loss"

    def shuffled(self, seed: int) -> Batches:
        """Give the training batches in the order of a seed."""
        batches = copy.copy(self.train)
        if hasattr(batches, "seed"):
            vars(batches).update(seed=seed)
        return batches

    def score(self, model: Any, points: Sequence[int]) -> dict[int, dict[str, float | None]]:
        """Measure on the test data: mean accuracy, or mean loss and its deviation over inputs."""
        options: dict[str, Any] = {"loss": self.loss} if self.judged_by == "loss" else {}
        return {
            number: {
                "mean": getattr(one, self.judged_by),
                "deviation": one.loss_deviation,
                "total": one.total,
            }
            for number, one in evaluate(model, self.test, points, **options).items()
        }


def answer(model: Any, batch: tuple[Any, ...]) -> Any:
    """Answer the inputs of a batch, with their mask if it has one."""
    inputs, *mask, _ = batch
    return model(inputs, **({"mask": mask[0]} if mask else {}))


class Smaller(nn.Module):
    """A network on inputs of half the size, which are averaged down first.

    Answers that are then smaller too are scaled up again to their size without it.
    """

    def __init__(self, network: nn.Module, example: Tensor) -> None:
        super().__init__()
        self.network = network
        with eval_mode(network, inference=False):
            answers = answer_in(network(example))
        self.sizes = [part.shape[1:] for part in parts_of(answers)]

    def forward(self, x: Tensor) -> Any:
        """Answer images (b, c, h, w), or series (b, c, t)."""
        shrink = F.avg_pool2d if x.ndim == 4 else F.avg_pool1d
        answers = answer_in(self.network(shrink(x, 2)))
        sizes = iter(self.sizes)

        def restored(part: Tensor) -> Tensor:
            size = next(sizes)
            if part.shape[1:] == size:
                return part
            return F.interpolate(part, size=size[1:], mode=("linear", "bilinear")[part.ndim - 3])

        return each(restored, answers)


@dataclass(frozen=True)
class Trainee:
    """A candidate: what makes its network, and how inputs share a pass."""

    name: str
    make: Make
    streams: int = 1
    binding: str = "hrr"
    is_trained: bool = False  # already; it is measured as it came
    where: tuple[str, str] | None = None  # bind_after and unbind_before, once they are found

    @property
    def folder(self) -> str:
        """Its name as a folder."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.name)

    def build(self, data: CompareData, seed: int) -> Any:
        """Make the network with the weights that a seed gives."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            network = self.make()
            if isinstance(network, SlimmableWideResNet):
                model: Any = network
            else:
                settings: dict[str, Any] = {"num_streams": self.streams}
                settings |= {"binding": self.binding} if self.streams > 1 else {}
                if self.where is not None:
                    settings |= dict(zip(("bind_after", "unbind_before"), self.where, strict=True))
                model = superpose(network, example=data.example, **settings)
        model.input_spec = data.spec
        return model

    def points(self, model: Any) -> dict[str, OperatingPoint]:
        """Name the operating points that get a row: all streams busy, or every width."""
        points = operating_points(model)
        if len(points) == 1 or self.streams > 1:
            return {self.name: points[-1]}
        widths = model.config.widths
        return {
            f"{self.name}, width {width:g}": point
            for width, point in zip(widths, points, strict=True)
        }


def read_data(
    data: Any,
    loss: str | Measure | None = None,
    known: InputSpec | None = None,
    *,
    batch_size: int = 64,
    seed: int = 0,
) -> CompareData:
    """Take a folder with a sub-folder per class, a .npz, or (train, test) of batches or loaders.

    Images are standardised as a network that was trained before says, ``known``.
    """
    if isinstance(data, tuple | list) and len(data) == 2:
        size = getattr(data[0], "batch_size", None)
        if size is None:
            raise ValueError("data=(train, test) needs two DataLoaders with a batch_size.")
        batches, test = as_batches(data[0], seed), as_batches(data[1])
        if not len(batches) or not len(test):
            raise ValueError("data=(train, test): one of the two DataLoaders has no batch.")
        labels = next(iter(test.epoch(0)))[-1]
        usual = "cross_entropy" if has_classes(labels) else "squared_error"
        return CompareData(batches, test, size, loss=loss or usual)
    if not isinstance(data, str | Path):
        raise ValueError(
            f"data={type(data).__name__} is not known: pass a folder with one sub-folder per "
            f"class, a .npz, or (train, test), two DataLoaders."
        )
    kind = "npz" if str(data).endswith(".npz") else "folder"
    splits = load_data(DataConfig(name=kind, dir=str(data), validation=0)).read()
    counts = torch.bincount(splits.train.labels, minlength=splits.train.num_classes)
    if int(counts.min()) < 2 or len(splits.test) < 10:
        raise ValueError(
            f"data={data}: the smallest class has {int(counts.min())} images to train on, and "
            f"{len(splits.test)} are left to test: collect at least 2 per class and 10 for the "
            f"test."
        )
    size = min(batch_size, len(splits.train))
    options: dict[str, Any] = {"shuffle": True, "seed": seed, "drop_last": True}
    if known is not None and known.mean and len(known.mean) == splits.train.shape[0]:
        options["statistics"] = torch.tensor(known.mean), torch.tensor(known.deviation)
    batches = ImageBatches(splits.train, size, **options)
    test = ImageBatches(splits.test, 128, statistics=batches.statistics)
    return CompareData(batches, test, size, image_spec(batches), loss or "cross_entropy")


def list_candidates(
    make: Make, siblings: Mapping[str, Make], streams: Sequence[int], data: CompareData
) -> tuple[list[Trainee], dict[str, str]]:
    """List what can be built, and why the others cannot."""
    wanted, example = [Trainee(AS_IT_IS, make)], data.example
    if example.ndim in (3, 4) and example.is_floating_point():
        name = "half resolution" if example.ndim == 4 else "half the samples"
        wanted.append(Trainee(name, lambda: Smaller(make(), example)))
    wanted += [Trainee(name, sibling) for name, sibling in siblings.items()]
    for binding, title in (("hrr", "keys"), ("tiles", "tiles")):
        wanted += [Trainee(f"{title}, N={count}", make, count, binding) for count in streams]
    plain = make()
    if isinstance(plain, WideResNet):  # at half and a quarter of the width, too
        config = SlimmableWideResNetConfig(**vars(plain.config))
        wanted.append(Trainee("slimmable", partial(SlimmableWideResNet, config)))
    given = (AS_IT_IS, *siblings)
    found, refused = [], {}
    for one in wanted:
        try:
            model = one.build(data, 0)
            _check_loss(model, data)
            known = one.name in given and is_trained(model, data)
            if one.streams > 1:
                one = replace(one, where=(model.config.bind_after, model.config.unbind_before))
            found.append(replace(one, is_trained=known))
        except Exception as error:  # it is third-party code
            if one.name == AS_IT_IS:
                raise ValueError(f"The network cannot be compared: {first_line(error)}") from error
            refused[one.name] = first_line(error)
    return found, refused


def _check_loss(model: Any, data: CompareData) -> None:
    """Try the loss on a batch of the test data, or say why that fails."""
    labels = data.first[-1]
    with eval_mode(model):
        answers = answer(model, data.first)
        if data.judged_by == "accuracy":
            if not has_classes(labels, answers):
                shape = tuple(parts_of(answers)[0].shape)
                raise ValueError(f"its answers {shape} are not (b, classes)")
            if int(labels.max()) >= answers.shape[-1]:
                raise ValueError(
                    f"it tells {answers.shape[-1]} classes apart, and the data has at least "
                    f"{int(labels.max()) + 1}"
                )
        loss_of(data.loss)(answers, labels)


def is_trained(model: Any, data: CompareData) -> bool:
    """Tell whether a network knows the task: clearly more often right than the commonest class.

    Of networks whose answers are values nobody can tell: pass ``teacher=`` for those.
    """
    if data.judged_by == "loss":
        return False
    batches = list(islice(data.test.epoch(0), -(-512 // data.batch_size)))
    labels = torch.cat([batch[-1] for batch in batches])
    with eval_mode(model):
        right = sum(int((answer(model, one).argmax(-1) == one[-1]).sum()) for one in batches)
    commonest = int(torch.bincount(labels).max()) / len(labels)
    low, _ = wilson_interval(right, len(labels))
    return len(labels) >= 50 and low > commonest + 0.2


def plan_steps(
    found: Sequence[Trainee],
    data: CompareData,
    teacher: nn.Module | None,
    *,
    seeds: int,
    minutes: float,
    workers: int = 1,
) -> int:
    """Count the steps that fit into the time."""
    seconds, batch = 0.0, next(iter(data.train.epoch(0)))
    trained = [one for one in found if not one.is_trained]
    for one in trained:
        model = one.build(data, 0).train()
        optimizer = torch.optim.AdamW(model.parameters())
        laps = []
        for _ in range(TRIAL_STEPS):
            start = time.perf_counter()
            loss_of(data.loss)(answer(model, batch), batch[-1]).backward()
            optimizer.step()
            if teacher is not None:
                with torch.no_grad():
                    answer(teacher, batch)
            laps.append(time.perf_counter() - start)
        seconds += statistics.median(laps) / workers
    steps = int(FOR_TRAINING * 60 * minutes / max(seconds * seeds, 1e-9))
    if steps < LEAST_STEPS and trained:
        least = math.ceil(LEAST_STEPS * seconds * seeds / FOR_TRAINING / 6) / 10
        raise ValueError(
            f"minutes={minutes:g} is too short: {len(trained)} candidates with {seeds} seeds get "
            f"{steps} steps each. Give at least minutes={least:g}, or fewer seeds."
        )
    return steps


def compare(
    network: nn.Module | Make,
    data: Any,
    *,
    out: str | Path = "runs/compare",
    speed: float | None = None,
    macs: float | None = None,
    minutes: float = 10.0,
    steps: int | None = None,
    seeds: int = 3,
    first_seed: int = 0,
    streams: Sequence[int] = (2, 4),
    siblings: Mapping[str, Make] | None = None,
    teacher: nn.Module | None = None,
    loss: str | Measure | None = None,
    lr: float = 3e-3,
    batch_size: int = 16,
    int8: bool = True,
    workers: int = 1,
    tell: Tell = lambda line: None,
) -> dict[str, Any]:
    """Train candidates alike on your data, measure them, and say which to run.

    What was done is kept in ``out``: the same call resumes there. A network, or a sibling, that is
    trained already is measured as it is. The others then learn from the network by distillation.

    Args:
        network: a function that makes the network anew; or a network, which is copied and starts
            from its weights.
        data: a folder with one sub-folder per class, a .npz, or (train, test), two DataLoaders.
        out: gets ``compare.json``, ``compare.png``, and exports in ``served/`` for
            ``mimonets serve``.
        speed: the aim: so many times the inputs per second of the network as it is.
        macs: or the aim: at most so many MACs per input.
        minutes: for all training and measuring, about.
        steps: optimiser steps of every candidate in place of minutes.
        seeds: trainings of every candidate, with the seeds from ``first_seed`` on.
        streams: inputs per pass of the superposed candidates.
        siblings: other networks by name, as functions, that take part.
        teacher: a trained network that all candidates learn from; by default the network itself, if
            it is trained.
        loss: ``"cross_entropy"``, ``"squared_error"``, ``"binary"`` or a function of answers and
            labels; by default the first for labels, the second for numbers.
        lr: learning rate of AdamW; lower it where the network starts from pretrained weights.
        batch_size: inputs per call when speed is measured.
        int8: also measure every candidate in int8.
        workers: trainings at a time, in processes of Ray.
        tell: called with a line after each step of the work.
    """
    numbers: dict[str, float | None] = {"batch_size": batch_size, "workers": workers, "lr": lr}
    numbers |= {"speed": speed, "macs": macs, "minutes": minutes, "steps": steps, "seeds": seeds}
    _check_numbers(numbers)
    if not streams or min(streams) < 2:
        raise ValueError(f"streams={tuple(streams)} must be integers >= 2.")
    make: Make = partial(copy.deepcopy, network) if isinstance(network, nn.Module) else network
    ready = read_data(data, loss, getattr(make(), "input_spec", None))
    found, refused = list_candidates(make, siblings or {}, streams, ready)
    if teacher is None and found[0].is_trained:
        teacher = make()
        tell(
            "the network is trained already: it is measured as it is, and the others learn from it"
        )
    for name, reason in refused.items():
        tell(f"{name} cannot be built: {reason}")
    folder = Path(out)
    plan: dict[str, Any] = {
        "candidates": [one.name for one in found],
        "budget": {"minutes": None if steps else minutes, "steps": steps, "seeds": seeds},
        "first_seed": first_seed,
        "lr": lr,
        "int8": int8,
        "data": str(data) if isinstance(data, str | Path) else None,
        "weights": [sum(p.numel() for p in one.make().parameters()) for one in found],
        "shape": list(ready.example.shape[1:]),
        "distilled": teacher is not None,
        "loss": ready.loss if isinstance(ready.loss, str) else "a function",
    }
    plan["steps"] = _resumed_steps(folder, plan)
    if plan["steps"] is None:
        plan["steps"] = steps or plan_steps(
            found, ready, teacher, seeds=seeds, minutes=minutes, workers=workers
        )
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "plan.json", json.dumps(plan, indent=2))
    tell(f"{len(found)} candidates, {seeds} seeds of each, {plan['steps']} steps")
    work = Work(ready, plan["steps"], folder, teacher, lr, int8)
    scores = work.train_all(found, range(first_seed, first_seed + seeds), workers, tell)
    for one in [one for one in found if "error" in scores[one.name][0]]:
        refused[one.name] = scores[one.name][0]["error"]
        found.remove(one)
    if not found:
        raise ValueError(f"No candidate could be trained; {AS_IT_IS}: {refused[AS_IT_IS]}")
    rows = work.measure(found, scores, first_seed, batch_size, tell)
    result = {
        "advice": advise(rows, speed=speed, macs=macs),
        "aim": {"speed": speed, "macs": macs},
        "rows": rows,
        "refused": refused,
        "plan": plan,
        "test_items": rows[0]["items"],
        "batch_size": batch_size,
        "environment": environment(),
    }
    write_text(folder / "compare.json", json.dumps(result, indent=2))
    plot(rows, folder / "compare.png")
    return result


def _check_numbers(numbers: Mapping[str, float | None]) -> None:
    for name, value in numbers.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name}={value!r} must be a number above 0.")
    if numbers["speed"] is not None and numbers["macs"] is not None:
        raise ValueError("speed and macs are two aims: give one of them.")


def _resumed_steps(folder: Path, plan: Mapping[str, Any]) -> int | None:
    """Read the steps of an earlier call into this folder; refuse one that asked for others."""
    path = folder / "plan.json"
    if not path.exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"out={folder} holds something else: name another folder.")
        return None
    before = json.loads(path.read_text(encoding="utf-8"))
    differing = [name for name in plan if before.get(name) != plan[name]]
    if differing:
        raise ValueError(
            f"out={folder} was begun with other {', '.join(differing)}: repeat that call, or name "
            f"another folder."
        )
    return int(before["steps"])


@dataclass(frozen=True)
class Work:
    """Train and measure candidates in a folder; what is there already is not done again."""

    data: CompareData
    steps: int
    folder: Path
    teacher: nn.Module | None
    lr: float
    int8: bool

    def run_of(self, one: Trainee, seed: int) -> Path:
        """Name the folder of one training."""
        return self.folder / "runs" / f"{one.folder}-{seed}"

    def train_all(
        self, found: Sequence[Trainee], seeds: Sequence[int], workers: int, tell: Tell
    ) -> dict[str, list[dict[str, Any]]]:
        """Train and test every candidate with every seed: scores by candidate, seed by seed."""
        scores: dict[str, list[dict[str, Any]]] = {one.name: [] for one in found}
        missing = []
        for one, seed in [(one, seed) for seed in seeds for one in found]:
            path = self.run_of(one, seed) / "test.json"
            if path.exists():
                scores[one.name].append(json.loads(path.read_text(encoding="utf-8")))
            else:
                missing.append((one, seed))
        started, form = time.monotonic(), ".1%" if self.data.judged_by == "accuracy" else ".4g"
        for number, ((one, seed), result) in enumerate(self._results(missing, workers), 1):
            scores[one.name].append(result)
            means = [point["mean"] for point in result.get("points", {}).values()]
            what = result.get("error") or ", ".join(format(mean, form) for mean in means)
            left = (time.monotonic() - started) / number * (len(missing) - number) / 60
            done = len(seeds) * len(found) - len(missing) + number
            tell(
                f"{done}/{len(seeds) * len(found)} {one.name}, seed {seed}: {what}; about "
                f"{left:.1f} minutes of training left"
            )
        return {
            # A candidate that failed with one seed counts as failed.
            name: [one for one in results if "error" in one]
            or sorted(results, key=itemgetter("seed"))
            for name, results in scores.items()
        }

    def _results(
        self, jobs: Sequence[tuple[Trainee, int]], workers: int
    ) -> Iterator[tuple[tuple[Trainee, int], dict[str, Any]]]:
        """Do jobs one after the other, or several at a time in processes of Ray."""
        if workers == 1 or len(jobs) < 2:
            yield from ((job, self.train_one(*job)) for job in jobs)
            return
        ray = need("ray", extra="ray", what="workers > 1")
        with ray_started(ray, workers):
            there = replace(self, folder=self.folder.resolve())
            sent = ray.put(ray.cloudpickle.dumps((there, jobs)))
            do = ray.remote(num_cpus=1)(_train_there)
            waiting = {do.remote(sys.path, sent, place): job for place, job in enumerate(jobs)}
            while waiting:
                (ready, *_), _ = ray.wait(list(waiting))
                yield waiting.pop(ready), ray.get(ready)

    def train_one(self, one: Trainee, seed: int) -> dict[str, Any]:
        """Train and test one candidate with one seed; an error is its result, others go on."""
        run, model = self.run_of(one, seed), one.build(self.data, seed)
        try:
            if one.is_trained:
                save(model, run / "model")
            else:
                self._train(model, run, seed)
        except (TrainingDivergedError, RuntimeError) as error:
            return {"error": f"training failed: {first_line(error)}"}
        points = {name: point.number for name, point in one.points(model).items()}
        measured = self.data.score(model, list(points.values()))
        found = {name: measured[number] for name, number in points.items()}
        result = {"seed": seed, "points": found}
        write_text(run / "test.json", json.dumps(result))
        return result

    def _train(self, model: Any, run: Path, seed: int) -> None:
        """Train as all others: the same inputs per step, and the same steps."""
        settings: dict[str, Any] = {
            **{"steps": self.steps, "batch_size": self.data.batch_size, "per_stream": False},
            **{"optimizer": "adamw", "lr": self.lr, "weight_decay": 1e-2, "mixup": 0.0},
            # Short trainings of any network: large gradients are clipped, no batch is skipped.
            **{"evaluate_every": 0, "grad_filter": None, "grad_clip": 1.0, "seed": seed},
        }
        own: dict[str, Any] = {"run_dir": run, "resume": True, "teacher": self.teacher}
        (settings if isinstance(self.data.loss, str) else own)["loss"] = self.data.loss
        train(model, self.data.shuffled(seed), TrainConfig(**settings), **own)
        if not isinstance(model, SlimmableWideResNet):
            # The running averages of short trainings lag behind the weights.
            batches = [batch[0] for batch in islice(self.data.train.epoch(0), 8)]
            recalibrate(model, batches, model.num_streams, shared=True)
            save(model, run / "model")

    def measure(
        self,
        found: Sequence[Trainee],
        scores: Mapping[str, Sequence[Mapping[str, Any]]],
        seed: int,
        batch_size: int,
        tell: Tell,
    ) -> list[dict[str, Any]]:
        """Export every candidate, race all engines, and count MACs and memory."""
        rows: list[dict[str, Any]] = []
        contenders: list[Contender] = []
        for one in found:
            tell(f"exporting {one.name}")
            fresh = one.make()
            own = isinstance(fresh, SlimmableWideResNet)
            model = load(self.run_of(one, seed) / "model", network=None if own else fresh).eval()
            served = self._export(one, model, tell)
            engines = self._engines(model, served, tell)
            for name, point in one.points(model).items():
                results = [result["points"][name] for result in scores[one.name]]
                row = self._row(name, model, point, results, served, batch_size)
                rows.append(row)
                inputs = model.example_inputs(batch_size).numpy()
                quantised = [engine for engine in engines if engine.endswith("int8")]
                if quantised and served is not None:
                    rows.append(self._int8_row(row, served, point, engines[quantised[0]]))
                for engine_name, engine in engines.items():
                    title = f"{name}, int8" if engine_name in quantised else name
                    call = partial(engine, inputs, point.number)
                    contenders.append(Contender(f"{title}/{engine_name}", call, batch_size))
        tell("timing all candidates in turn")
        timings = sorted(race(contenders, rounds=7), key=attrgetter("inputs_per_second"))
        fastest = {timing.name.rpartition("/")[0]: timing for timing in timings}
        for row in rows:
            best = fastest[row["name"]]
            row["inputs_per_second"] = best.inputs_per_second
            row["engine"] = best.name.rpartition("/")[2]
            row["speed"] = best.speedup_over(fastest[rows[0]["name"]]).median
        return rows

    def _row(
        self,
        name: str,
        model: Any,
        point: OperatingPoint,
        results: Sequence[Mapping[str, Any]],
        served: Path | None,
        batch_size: int,
    ) -> dict[str, Any]:
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        run = partial(model, model.example_inputs(batch_size), **point.options)
        with torch.inference_mode():
            activations = peak_memory(run)
        by_seed, items = [one["mean"] for one in results], results[0]["total"]
        return {
            "name": name,
            "base": name,
            "inputs_per_pass": point.inputs_per_pass,
            self.data.judged_by: statistics.mean(by_seed),
            "interval": interval(by_seed, items, results[0]["deviation"]),
            "by_seed": by_seed,
            "items": items,
            "macs": count_macs(fixed_at(model, point)).plain,
            "memory": weights + activations,
            "activations": activations,
            "served": None if served is None else str(served),
        }

    def _export(self, one: Trainee, model: Any, tell: Tell) -> Path | None:
        """Export a candidate, in int8 too if that works; None if it runs in PyTorch only."""
        served = self.folder / "served" / one.folder
        if (served / "manifest.json").exists():
            return served
        numbers = [point.number for point in one.points(model).values()]
        calibration = [batch[0] for batch in islice(self.data.train.epoch(0), 4)]
        settings: dict[str, Any] = {"modes": numbers, "measure": False}
        settings |= {"evaluation": self._some_tests(), "options": ExportOptions(max_loss=100.0)}
        for int8 in (calibration, None) if self.int8 else (None,):
            try:
                export(model, served, int8=int8, **settings)
                return served  # export's own answer is an absolute path
            except Exception as error:  # quantisers and exporters may raise anything
                where = "PyTorch only" if int8 is None else "float32 only"
                tell(f"{one.name} runs in {where}: {first_line(error)}")
        return None

    def _some_tests(self) -> list[tuple[Any, ...]]:
        """Give test batches of at most MOST_ITEMS inputs in all."""
        found: list[tuple[Any, ...]] = []
        for batch in self.data.test.epoch(0):
            if found and sum(len(one[0]) for one in found) + len(batch[0]) > MOST_ITEMS:
                break
            found.append(batch)
        return found

    def _engines(self, model: Any, served: Path | None, tell: Tell) -> dict[str, Engine]:
        engines = {"torch": Engine(model, "torch")}
        for name in RUNTIMES if served is not None else ():
            try:
                engines[name] = Engine(served, name)
            except ValueError as error:  # not installed, or not exported
                if "int8" not in name:
                    tell(f"{name} does not take part: {first_line(error)}")
        return engines

    def _int8_row(
        self, row: Mapping[str, Any], served: Path, point: OperatingPoint, int8: Engine
    ) -> dict[str, Any]:
        """Shift a row by what int8 changes, with one seed and on some of the test items."""
        key, known = self.data.judged_by, int8.manifest.mode(point.number).accuracy
        if key == "accuracy":
            changed = known[int8.backend] - known["float32"]
        else:
            changed = self._change(served, point, int8)
        name = int8.backend.replace("onnxruntime", "onnx")
        size = sum((served / path).stat().st_size for path in int8.manifest.formats[name].files)
        return {
            **row,
            "name": f"{row['name']}, int8",
            key: row[key] + changed,
            "by_seed": [row["by_seed"][0] + changed],
            "memory": size + row["activations"],
        }

    def _change(self, served: Path, point: OperatingPoint, int8: Engine) -> float:
        """Measure how the loss changes with int8."""
        plain, loss = Engine(served, int8.backend.partition("-")[0]), loss_of(self.data.loss)
        sums = [0.0, 0.0]
        for batch in self._some_tests():
            for place, engine in enumerate((plain, int8)):
                run = partial(engine, active_streams=point.number)
                sums[place] += float(loss(answer(run, batch), batch[-1])) * len(batch[0])
        return (sums[1] - sums[0]) / sum(len(batch[0]) for batch in self._some_tests())


def _train_there(path: list[str], sent: bytes, place: int) -> dict[str, Any]:
    """Do one of the jobs in a process of Ray, which finds the user's own modules as we do."""
    sys.path[:] = path
    work, jobs = pickle.loads(sent)
    result: dict[str, Any] = work.train_one(*jobs[place])
    return result
