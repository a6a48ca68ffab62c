"""``mimonets reproduce NAME --speed``: inputs per second of every network of a plan."""

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import nn

from mimonets._figure import save_figure
from mimonets._operating_point import OperatingPoint
from mimonets.evaluation.macs import count_macs
from mimonets.evaluation.memory import peak_memory
from mimonets.evaluation.provenance import environment
from mimonets.evaluation.throughput import Contender, race
from mimonets.experiments.experiment import Record
from mimonets.experiments.figures import against_cost
from mimonets.experiments.plan import Plan
from mimonets.experiments.trained import row_titles
from mimonets.inference import Engine, export
from mimonets.models import eval_mode, fixed_at
from mimonets.recipes.execute import make_model

ENGINES = ("eager", "onnxruntime", "openvino")  # float32: each answers what PyTorch does
BATCH_SIZE = 64
ROUNDS, WARM_UP = 9, 2


def measure_plan_speed(
    plan: Plan,
    folder: Path,
    only: str = "",
    rounds: int = ROUNDS,
    after_round: Callable[[], object] = lambda: None,
) -> Record:
    """Race the networks of a plan, with random weights, in every engine.

    Trials that share a network, and differ in training alone, share its measurement.

    Args:
        folder: an empty one, for exported networks.
        only: measure only trials with this in their name.
        rounds: how often each is timed.
        after_round: called after each round and each of the two to warm up, for a progress bar.
    """
    found: dict[tuple[Any, int], list[str]] = {}
    candidates: dict[tuple[Any, int], Candidate] = {}
    for trial in plan.trials:
        if only not in trial.name or trial.removed:
            continue
        model = make_model(trial.load(0)).eval()
        for point, title in row_titles(trial):
            key = (model.config, point.number)
            candidates.setdefault(key, Candidate(title, model, point))
            found.setdefault(key, []).append(title)
    if not candidates:
        raise ValueError(f"{plan.name} has no trial with {only!r} in its name to time.")
    rows = measure_speeds(
        list(candidates.values()),
        folder,
        ENGINES,
        batch_size=BATCH_SIZE,
        rounds=rounds,
        after_round=after_round,
    )
    return {
        "experiment": plan.name,
        "title": f"{plan.title}: speed",
        "environment": environment(),
        "batch_size": BATCH_SIZE,
        "threads": 1,
        "clock": "CPU time",
        "engines": list(ENGINES),
        "rows": [
            {**row, "what": title}
            for (key, titles), row in zip(found.items(), rows, strict=True)
            for title in titles
        ],
    }


def speed_table(record: Record) -> Table:
    """Lay out inputs per second, engine by engine, and memory."""
    table = Table(title=f"{record['title']} (one thread, batch of {record['batch_size']})")
    table.add_column("network")
    for name in (*record["engines"], "MMAC/input", "weights, kB", "a pass, kB"):
        table.add_column(name, justify="right")
    for row in record["rows"]:
        table.add_row(
            row["what"],
            *(f"{row['engines'][engine]:.0f}" for engine in record["engines"]),
            f"{row['macs'] / 1e6:.2f}",
            *(f"{row[what] / 1e3:.0f}" for what in ("weight_bytes", "peak_bytes")),
        )
    return table


def draw_against_speed(record: Record, speeds: Record, path: Path) -> Path:
    """Draw accuracy against measured inputs per second."""
    fast = {row["what"]: row["inputs_per_second"] for row in speeds["rows"]}
    rows = [
        {**{name: row[name] for name in row if name != "paper"}, "speed": fast[row["what"]]}
        for row in record["rows"]
        if "ours" in row and row["what"] in fast and row["unit"] == "%"
    ]
    if not rows:
        raise ValueError(
            f"No network of {record['experiment']} has both an accuracy and a speed: train some."
        )
    figure = against_cost(rows, "speed", "inputs/s, one thread, best engine")
    figure.suptitle(record["title"], fontsize=10)
    return save_figure(figure, path)


@dataclass(frozen=True)
class Candidate:
    """A network at one operating point: something a user could run."""

    name: str
    network: Any
    point: OperatingPoint

    @property
    def exported(self) -> Any:
        """The network as exports and engines take it."""
        return fixed_at(self.network, self.point)


def measure_speeds(
    candidates: Sequence[Candidate],
    folder: Path,
    engines: Sequence[str] = ENGINES,
    *,
    batch_size: int = 64,
    rounds: int = 9,
    after_round: Callable[[], object] = lambda: None,
) -> list[dict[str, Any]]:
    """Race all candidates in every engine on one thread; one row of plain data for each.

    Seconds are CPU time, which others on the machine disturb little. Speed does not depend on the
    weights, so networks need not be trained.

    Args:
        candidates: their names must differ.
        folder: an empty one, for exports.
        engines: of :data:`ENGINES`; the best of them is named in each row.
        batch_size: inputs of a call, for all alike.
        rounds: how often each is timed, in turn with the others.
        after_round: called after each round, for a progress bar.
    """
    with one_thread():
        contenders = [
            Contender(f"{engine}: {one.name}", _runner(one, engine, folder, batch_size), batch_size)
            for one in candidates
            for engine in engines
        ]
        raced = race(contenders, rounds=rounds, after_round=after_round, clock=time.process_time)
        timings = {timing.name: timing for timing in raced}
    return [
        _row(one, {engine: timings[f"{engine}: {one.name}"] for engine in engines}, batch_size)
        for one in candidates
    ]


def weight_bytes(network: nn.Module) -> int:
    """Count the bytes of all weights and statistics, each once.

    >>> weight_bytes(nn.Linear(3, 2))
    32
    """
    held = {t.data_ptr(): t for t in chain(network.parameters(), network.buffers())}
    return sum(tensor.numel() * tensor.element_size() for tensor in held.values())


@contextmanager
def one_thread() -> Iterator[None]:
    """Run PyTorch on one thread for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _runner(one: Candidate, engine: str, folder: Path, batch_size: int) -> Callable[[], object]:
    inputs = one.network.example_inputs(batch_size).numpy()
    active = one.point.inputs_per_pass
    source: Any = one.exported
    if engine != "eager":
        source = folder / re.sub(r"[^A-Za-z0-9=.]+", "-", one.name).strip("-")
        if not source.is_dir():
            print(f"exporting {one.name}", file=sys.stderr, flush=True)
            export(one.exported, source, modes=[active], measure=False)
    run = Engine(source, "torch" if engine == "eager" else engine, threads=1)
    return lambda: run(inputs, active)


def _row(one: Candidate, timings: dict[str, Any], batch_size: int) -> dict[str, Any]:
    best = max(timings, key=lambda engine: timings[engine].inputs_per_second)
    images = one.network.example_inputs(batch_size)
    with eval_mode(one.network):
        peak = peak_memory(lambda: one.network(images, **one.point.options))
    return {
        "what": one.name,
        "inputs_per_second": timings[best].inputs_per_second,
        "engine": best,
        "quartiles": list(timings[best].spread),
        "engines": {name: timing.inputs_per_second for name, timing in timings.items()},
        "macs": count_macs(one.network, one.point.number).paper,
        "weight_bytes": weight_bytes(one.network),
        "peak_bytes": peak,
    }
