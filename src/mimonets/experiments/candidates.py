"""compare(): does it pay for my network and my data? Candidates trained alike, a table, advice.

What one could run instead takes part on equal terms: the network as it is, the network on smaller
inputs, and networks that the user names. The advice may well be not to superpose.
"""

import copy
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mimonets._figure import new_axes, save_figure
from mimonets._files import write_text
from mimonets._inputs import InputSpec
from mimonets._messages import first_line
from mimonets._seeds import mean_and_deviation, wilson_interval
from mimonets.checkpoints import load
from mimonets.data import DataConfig, ImageBatches
from mimonets.data.interface import Batches, as_batches
from mimonets.data.registry import load_data
from mimonets.evaluation import Contender, count_macs, peak_memory, race
from mimonets.evaluation.accuracy import evaluate
from mimonets.evaluation.provenance import environment
from mimonets.inference import Engine, export
from mimonets.models import Superposed, superpose
from mimonets.training import TrainConfig, train

Make = Callable[[], nn.Module]
LEAST_STEPS = 20  # fewer teach nothing that is worth a comparison
TRIAL_STEPS = 3  # from which the time of all others is estimated
RUNTIMES = ("onnxruntime", "openvino")
STUDENT = {
    2: 12.71,
    3: 4.30,
    4: 3.18,
    5: 2.78,
}  # 95 %, two-sided, by number of seeds; 1.96 for more
AS_IT_IS = "as it is"


@dataclass(frozen=True)
class CompareData:
    """Batches to train and to test on, alike for all candidates."""

    train: Batches
    test: Batches
    batch_size: int
    spec: InputSpec | None = None

    @property
    def example(self) -> Tensor:
        """Two inputs."""
        return next(iter(self.test.epoch(0)))[0][:2]

    def shuffled(self, seed: int) -> Batches:
        """Give the training batches in the order of a seed."""
        batches = copy.copy(self.train)
        if hasattr(batches, "seed"):
            vars(batches).update(seed=seed)
        return batches


class Smaller(nn.Module):
    """A network on images of half the height and width, which are averaged down first."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.shrink = nn.AvgPool2d(2)
        self.network = network

    def forward(self, x: Tensor) -> Any:
        """Answer images (b, c, h, w)."""
        return self.network(self.shrink(x))


@dataclass(frozen=True)
class Trainee:
    """A candidate: what makes its network, and how inputs share a pass."""

    name: str
    make: Make
    streams: int = 1
    binding: str = "hrr"

    @property
    def folder(self) -> str:
        """Its name as a folder."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.name)

    def build(self, data: CompareData, seed: int) -> Superposed:
        """Make the network with the weights that a seed gives."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            settings: dict[str, Any] = {"num_streams": self.streams}
            settings |= {"binding": self.binding} if self.streams > 1 else {}
            model = superpose(self.make(), example=data.example, **settings)
        model.input_spec = data.spec
        return model


def read_data(data: Any, batch_size: int = 64, seed: int = 0) -> CompareData:
    """Take a folder with a sub-folder per class, a .npz, or (train, test) of batches or loaders."""
    if isinstance(data, tuple | list) and len(data) == 2:
        size = getattr(data[0], "batch_size", None)
        if size is None:
            raise ValueError("data=(train, test) needs two DataLoaders with a batch_size.")
        return CompareData(as_batches(data[0], seed), as_batches(data[1]), size)
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
    batches = ImageBatches(splits.train, size, **options)
    mean, deviation = (tuple(value.tolist()) for value in batches.statistics)
    spec = InputSpec(
        kind="image",
        shape=splits.train.shape,
        mean=mean,
        deviation=deviation,
        original=splits.train.shape[1:],
        labels=splits.train.class_names,
    )
    test = ImageBatches(splits.test, 128, statistics=batches.statistics)
    return CompareData(batches, test, size, spec)


def list_candidates(
    make: Make, siblings: Mapping[str, Make], streams: Sequence[int], data: CompareData
) -> tuple[list[Trainee], dict[str, str]]:
    """List what can be built, and why the others cannot."""
    wanted = [Trainee(AS_IT_IS, make)]
    if data.example.ndim == 4:
        wanted.append(Trainee("half resolution", lambda: Smaller(make())))
    wanted += [Trainee(name, sibling) for name, sibling in siblings.items()]
    for binding, title in (("hrr", "keys"), ("tiles", "tiles")):
        wanted += [Trainee(f"{title}, N={count}", make, count, binding) for count in streams]
    found, refused = [], {}
    for one in wanted:
        try:
            model = one.build(data, 0)
            answers = model.eval()(data.example)
            if answers.ndim != 2:
                raise ValueError(f"its answers {tuple(answers.shape)} are not (b, classes)")
            found.append(one)
        except Exception as error:  # it is third-party code
            if one.name == AS_IT_IS:
                raise ValueError(f"The network cannot be compared: {first_line(error)}") from error
            refused[one.name] = first_line(error)
    return found, refused


def train_config(steps: int, batch_size: int, seed: int, **changes: Any) -> TrainConfig:
    """Say how every candidate is trained: the same inputs per step, and the same steps."""
    settings: dict[str, Any] = {
        **{"steps": steps, "batch_size": batch_size, "per_stream": False, "seed": seed},
        **{"optimizer": "adamw", "lr": 3e-3, "weight_decay": 1e-2, "mixup": 0.0},
        **{"evaluate_every": 0},
    }
    return TrainConfig(**settings, **changes)


def plan_steps(
    found: Sequence[Trainee], data: CompareData, seeds: int, minutes: float
) -> tuple[int, float]:
    """Count the steps that fit into the time, and estimate the seconds that they take in all."""
    seconds = 0.0
    batch = next(iter(data.train.epoch(0)))
    for one in found:
        model = one.build(data, 0).train()
        optimizer = torch.optim.AdamW(model.parameters())
        laps = []
        for _ in range(TRIAL_STEPS):
            start = time.perf_counter()
            nn.functional.cross_entropy(model(batch[0]), batch[-1]).backward()
            optimizer.step()
            laps.append(time.perf_counter() - start)
        seconds += statistics.median(laps)
    steps = int(0.7 * 60 * minutes / (seconds * seeds))  # the rest is for measuring
    if steps < LEAST_STEPS:
        least = math.ceil(LEAST_STEPS * seconds * seeds / 0.7 / 6) / 10
        raise ValueError(
            f"minutes={minutes:g} is too short: {len(found)} candidates with {seeds} seeds get "
            f"{steps} steps each. Give at least minutes={least:g}, or fewer seeds."
        )
    return steps, steps * seconds * seeds


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
    batch_size: int = 16,
    tell: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Train candidates alike on your data, measure them, and say which to run.

    What was done is kept in ``out``: the same call resumes there.

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
        teacher: a trained network that all candidates learn from.
        batch_size: inputs per call when speed is measured.
        tell: called with a line after each step of the work.
    """
    _check_numbers(speed=speed, macs=macs, minutes=minutes, steps=steps, seeds=seeds)
    if not streams or min(streams) < 2:
        raise ValueError(f"streams={tuple(streams)} must be integers >= 2.")
    make: Make = partial(copy.deepcopy, network) if isinstance(network, nn.Module) else network
    ready = read_data(data)
    found, refused = list_candidates(make, siblings or {}, streams, ready)
    for name, reason in refused.items():
        tell(f"{name} cannot be built: {reason}")
    folder = Path(out)
    plan: dict[str, Any] = {
        "candidates": [one.name for one in found],
        "asked": {"minutes": None if steps else minutes, "steps": steps, "seeds": seeds},
        "first_seed": first_seed,
        "data": str(data) if isinstance(data, str | Path) else None,
        "weights": [sum(p.numel() for p in one.make().parameters()) for one in found],
        "shape": list(ready.example.shape[1:]),
        "distilled": teacher is not None,
    }
    plan["steps"] = _resumed_steps(folder, plan)
    if plan["steps"] is None:
        plan["steps"] = steps or plan_steps(found, ready, seeds, minutes)[0]
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "plan.json", json.dumps(plan, indent=2))
    numbers = range(first_seed, first_seed + seeds)
    correct, items = train_all(found, ready, plan["steps"], numbers, folder, teacher, tell)
    rows = measure(found, ready, correct, items, folder, batch_size, tell)
    result = {
        "advice": advise(rows, speed=speed, macs=macs),
        "aim": {"speed": speed, "macs": macs},
        "rows": rows,
        "refused": refused,
        "plan": plan,
        "test_items": items,
        "batch_size": batch_size,
        "environment": environment(),
    }
    write_text(folder / "compare.json", json.dumps(result, indent=2))
    plot(rows, folder / "compare.png")
    return result


def _check_numbers(**numbers: float | None) -> None:
    for name, value in numbers.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name}={value!r} must be a number above 0.")


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


def train_all(
    found: Sequence[Trainee],
    data: CompareData,
    steps: int,
    seeds: Sequence[int],
    folder: Path,
    teacher: nn.Module | None,
    tell: Callable[[str], object],
) -> tuple[dict[str, list[int]], int]:
    """Train and test every candidate with every seed; what is done already is read."""
    correct: dict[str, list[int]] = {one.name: [] for one in found}
    total, done, started, fresh = len(seeds) * len(found), 0, time.monotonic(), 0
    items = 0
    for seed in seeds:
        for one in found:
            run = folder / "runs" / f"{one.folder}-{seed}"
            path = run / "test.json"
            if not path.exists():
                model = one.build(data, seed)
                config = train_config(steps, data.batch_size, seed)
                train(model, data.shuffled(seed), config, run_dir=run, resume=True, teacher=teacher)
                tested = next(iter(evaluate(model, data.test).values()))
                write_text(path, json.dumps({"correct": tested.correct, "total": tested.total}))
                fresh += 1
            answer = json.loads(path.read_text(encoding="utf-8"))
            correct[one.name].append(answer["correct"])
            items = answer["total"]
            done += 1
            left = (time.monotonic() - started) / max(fresh, 1) * (total - done)
            tell(
                f"{done}/{total} {one.name}, seed {seed}: {answer['correct'] / items:.1%}, about "
                f"{left / 60:.1f} minutes of training left"
            )
    return correct, items


def interval(correct: Sequence[int], total: int) -> float:
    r"""Half the 95 % interval of an accuracy over seeds and test items.

    .. math:: \sqrt{(t \, s / \sqrt{k})^2 + h^2}

    with the deviation s over k seeds, Student's t, and Wilson's half interval h of the test items.

    >>> round(interval([90, 90, 90], 100), 3), interval([88, 90, 92], 100) > 0.07
    (0.06, True)
    """
    low, high = wilson_interval(round(sum(correct) / len(correct)), total)
    _, deviation = mean_and_deviation([one / total for one in correct])
    count = len(correct)
    spread = STUDENT.get(count, 1.96) * (deviation or 0.0) / math.sqrt(count)
    return min(1.0, math.hypot(spread, (high - low) / 2))


def measure(
    found: Sequence[Trainee],
    data: CompareData,
    correct: Mapping[str, list[int]],
    total: int,
    folder: Path,
    batch_size: int,
    tell: Callable[[str], object],
) -> list[dict[str, Any]]:
    """Export every candidate, race all engines, and count MACs and memory."""
    contenders, rows = [], []
    count = max(batch_size, 1)
    for one in found:
        run = min((folder / "runs").glob(f"{one.folder}-[0-9]*"))
        model = load(run / "model", network=one.make())
        inputs = model.example_inputs(count)
        served: Path | None = folder / "served" / one.folder
        assert served is not None
        try:
            test = list(data.test.epoch(0))
            if not (served / "manifest.json").exists():
                export(model, served, modes=[one.streams], evaluation=test, measure=False)
        except ValueError as error:
            tell(f"{one.name} runs in PyTorch only: {first_line(error)}")
            served = None
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        with torch.inference_mode():
            memory = weights + peak_memory(
                partial(model.eval(), inputs, active_streams=one.streams)
            )
        rows.append(
            {
                "name": one.name,
                "inputs_per_pass": one.streams,
                "accuracy": sum(correct[one.name]) / len(correct[one.name]) / total,
                "interval": interval(correct[one.name], total),
                "by_seed": [right / total for right in correct[one.name]],
                "macs": count_macs(model, one.streams).plain,
                "memory": memory,
                "served": None if served is None else str(served),
            }
        )
        engines = {"torch": Engine(model, "torch")}
        for name in RUNTIMES if served is not None else ():
            try:
                engines[name] = Engine(served, name)
            except ValueError as error:  # not installed
                tell(f"{name} does not take part: {first_line(error)}")
        for name, engine in engines.items():
            call = partial(engine, inputs.numpy(), one.streams)
            contenders.append(Contender(f"{one.name}/{name}", call, count))
    tell("timing all candidates in turn")
    timings = race(contenders, rounds=9)
    for row in rows:
        own = [one for one in timings if one.name.rpartition("/")[0] == row["name"]]
        best = max(own, key=lambda timing: timing.inputs_per_second)
        row["inputs_per_second"] = best.inputs_per_second
        row["engine"] = best.name.rpartition("/")[2]
    for row in rows:
        row["speed"] = row["inputs_per_second"] / rows[0]["inputs_per_second"]
    return rows


def advise(
    rows: Sequence[Mapping[str, Any]], *, speed: float | None = None, macs: float | None = None
) -> str:
    """Say in a sentence what to run. Without an aim: at the speed of the fastest superposed one.

    >>> row = {"accuracy": 0.9, "interval": 0.01, "macs": 1e6, "inputs_per_pass": 1}
    >>> rows = [row | {"name": "as it is", "speed": 1.0}, row | {"name": "small", "speed": 3.5}]
    >>> advise(rows, speed=3)
    'At 3x the speed: small 90.0 ± 1.0: take small.'
    """
    if macs is not None:
        aim, fitting = f"At {macs / 1e6:g} MMAC", [row for row in rows if row["macs"] <= macs]
    else:
        shared = [row["speed"] for row in rows if row["inputs_per_pass"] > 1]
        wanted = speed or max(shared, default=1.0)
        aim, fitting = f"At {wanted:.3g}x the speed", [r for r in rows if r["speed"] >= wanted]
    fitting = sorted(fitting, key=lambda row: -row["accuracy"])
    if not fitting:
        best = max(rows, key=lambda row: row["speed"])
        return (
            f"{aim}: no candidate gets there; the fastest is {best['name']}, {best['speed']:.2g}x "
            f"at {_written(best)}."
        )
    first = fitting[0]
    listed = ", ".join(f"{row['name']} {_written(row)}" for row in fitting[:4])
    close = [
        row["name"]
        for row in fitting[1:]
        if first["accuracy"] - row["accuracy"] < math.hypot(first["interval"], row["interval"])
    ]
    also = f" ({', '.join(close)}: within the intervals)" if close else ""
    return f"{aim}: {listed}: take {first['name']}{also}."


def _written(row: Mapping[str, Any]) -> str:
    return f"{row['accuracy'] * 100:.1f} ± {row['interval'] * 100:.1f}"


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw accuracy against inputs per second, and the front that nothing else beats."""
    figure, axes = new_axes()
    for row in rows:
        shared = row["inputs_per_pass"] > 1
        axes.errorbar(
            *(row["inputs_per_second"], row["accuracy"] * 100),
            yerr=row["interval"] * 100,
            **{"marker": "s" if shared else "o", "capsize": 4, "label": row["name"]},
        )
    front = [
        row
        for row in sorted(rows, key=lambda row: row["inputs_per_second"])
        if not any(
            other["accuracy"] > row["accuracy"]
            and other["inputs_per_second"] > row["inputs_per_second"]
            for other in rows
        )
    ]
    axes.plot(
        [row["inputs_per_second"] for row in front],
        [row["accuracy"] * 100 for row in front],
        **{"color": "0.7", "zorder": 0, "label": "Pareto front"},
    )
    axes.set_xlabel("inputs per second in the best engine")
    axes.set_ylabel("test accuracy, %, with 95 % interval")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return save_figure(figure, path)
