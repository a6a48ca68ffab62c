"""``mimonets reproduce NAME --speed``: inputs per second of every network of a plan."""

import time
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from torch import nn

from mimonets._figure import save_figure
from mimonets._show import make_table
from mimonets.evaluation.bench import BenchSettings, Candidate, race_candidates
from mimonets.evaluation.macs import count_macs
from mimonets.evaluation.memory import peak_memory
from mimonets.evaluation.provenance import environment
from mimonets.evaluation.throughput import Timing
from mimonets.experiments.experiment import Record
from mimonets.experiments.figures import against_cost
from mimonets.experiments.plan import Plan
from mimonets.experiments.trained import row_titles
from mimonets.models import eval_mode
from mimonets.recipes.execute import make_model

SETTINGS = BenchSettings(
    batch_sizes=(64,),
    rounds=9,
    threads=1,
    engines=("eager", "onnxruntime", "openvino"),  # float32: each answers what PyTorch does
    keep_memory=False,
)


def measure_plan_speed(
    plan: Plan,
    only: str = "",
    settings: BenchSettings = SETTINGS,
    after_round: Callable[[], object] = lambda: None,
) -> Record:
    """Race the networks of a plan, with random weights, in every engine; take CPU time.

    Speed does not depend on the weights: trials that share a network, and differ in training alone,
    share its measurement.

    Args:
        only: measure only trials with this in their name.
        settings: batch size, rounds, threads and engines.
        after_round: called after each round and each of the two to warm up, for a progress bar.
    """
    titles: dict[tuple[Any, int], list[str]] = {}
    candidates: dict[tuple[Any, int], list[Candidate]] = {}  # one for each engine
    for trial in plan.trials:
        if only not in trial.name or trial.removed:
            continue
        model = make_model(trial.load(0)).eval()
        inputs = model.example_inputs(settings.batch_sizes[0])
        for point, title in row_titles(trial):
            key = (model.config, point.number)
            titles.setdefault(key, []).append(title)
            candidates[key] = [Candidate(model, point, one, inputs) for one in settings.engines]
    if not candidates:
        raise ValueError(f"{plan.name} has no trial with {only!r} in its name to time.")
    named = {
        f"{one.engine}: {titles[key][0]}": one for key in candidates for one in candidates[key]
    }
    timings = race_candidates(named, settings, after_round=after_round, clock=time.process_time)
    found = {timing.name: timing for timing in timings}
    return {
        "experiment": plan.name,
        "title": f"{plan.title}: speed",
        "environment": environment(),
        "batch_size": settings.batch_sizes[0],
        "threads": settings.threads,
        "clock": "CPU time",
        "engines": list(settings.engines),
        "rows": [
            {"what": title, **row}
            for key, (one, *_) in candidates.items()
            for row in [_row(one, {e: found[f"{e}: {titles[key][0]}"] for e in settings.engines})]
            for title in titles[key]
        ],
    }


def speed_table(record: Record) -> Any:
    """Lay out inputs per second, engine by engine, and memory."""
    title = f"{record['title']} (one thread, batch of {record['batch_size']})"
    names = ["network", *record["engines"], "MMAC/input", "weights, kB", "a pass, kB"]
    table = make_table(title, names)
    for row in record["rows"]:
        table.add_row(
            row["what"],
            *(f"{row['engines'][engine]:.0f}" for engine in record["engines"]),
            f"{row['macs'] / 1e6:.2f}",
            *(f"{row[what] / 1e3:.0f}" for what in ("weight_bytes", "peak_bytes")),
        )
    return table


def draw_against_speed(record: Record, speeds: Record, path: Path) -> Path:
    """Draw accuracy against measured inputs per second, for the variant with the most rows.

    Of several with as many, the last is drawn, such as the longest training.
    """
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
    count = Counter(row.get("variant", "") for row in rows)
    fullest = max(count, key=lambda variant: (count[variant], list(count).index(variant)))
    rows = [row for row in rows if row.get("variant", "") == fullest]
    figure = against_cost(rows, "speed", "inputs/s, one thread, best engine")
    figure.suptitle(record["title"], fontsize=10)
    return save_figure(figure, path)


def _row(one: Candidate, timings: dict[str, Timing]) -> Record:
    """Describe the speed of a network at one operating point, from its timings by engine."""
    best = max(timings, key=lambda engine: timings[engine].inputs_per_second)
    with eval_mode(one.model):
        peak = peak_memory(one.in_pytorch)
    return {
        "inputs_per_second": timings[best].inputs_per_second,
        "engine": best,
        "quartiles": list(timings[best].spread),
        "engines": {name: timing.inputs_per_second for name, timing in timings.items()},
        "macs": count_macs(one.model, one.point.number).paper,
        "weight_bytes": weight_bytes(one.model),
        "peak_bytes": peak,
    }


def weight_bytes(network: nn.Module) -> int:
    """Count the bytes of all weights and statistics, each once.

    >>> weight_bytes(nn.Linear(3, 2))
    32
    """
    held = {t.data_ptr(): t for t in chain(network.parameters(), network.buffers())}
    return sum(tensor.numel() * tensor.element_size() for tensor in held.values())
