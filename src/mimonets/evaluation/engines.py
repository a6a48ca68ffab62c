"""Race engines: the same networks through PyTorch, ONNX Runtime and OpenVINO, in one process.

Beside the time: which share of the machine's matrix products an engine reaches, and how much
memory a process needs with one mode open and with all.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from mimonets._memory import keep_freed_memory
from mimonets._messages import did_you_mean
from mimonets.evaluation.bench import BenchSettings, build
from mimonets.evaluation.macs import count_macs
from mimonets.evaluation.throughput import Contender, Timing, quartiles, race
from mimonets.inference import BACKENDS, Engine, ExportOptions, export
from mimonets.models import alternatives_of, find_point, name_of, usual_points

IN_MEMORY = {"eager": "torch", "compiled": "compiled"}  # what needs no export
SIZE = 1536  # of the matrices whose product is the machine's best

# A process without PyTorch, as a server would be: open modes, call each with one group.
OPEN_AND_MEASURE = """
import json, sys, time
import numpy as np
from mimonets.inference import Engine
from mimonets.inference.choose import example_inputs

start = time.process_time()
engine = Engine(sys.argv[1], sys.argv[2], threads=int(sys.argv[3]))
first = None
for mode in map(int, sys.argv[4:]):
    engine(example_inputs(engine.input_spec, engine.manifest.answers_per_group(mode)), mode)
    first = first or time.process_time() - start
with open("/proc/self/smaps_rollup", encoding="utf-8") as file:
    size = next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
print(json.dumps({"pss_megabytes": size / 1024, "first_answer_cpu_seconds": first}))
"""


def bench_engines(
    network: Any,
    engines: Sequence[str],
    folder: Path,
    modes: Sequence[int | None] | None = None,
    settings: BenchSettings | None = None,
    *,
    after_round: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Time a network and its plain alternative in several engines, interleaved.

    Args:
        network: a config of ours, or a model; int8 is calibrated on random inputs, which changes
            no speed.
        engines: names from ``mimonets.inference.BACKENDS``; ``"eager"`` is PyTorch as it is.
        folder: where exports are written; what is there already is used again.
        modes: numbers of active streams, None for all that the model has.
        settings: batch size, rounds, warm-up and threads.
        after_round: called after each round, for a progress bar.

    Returns:
        Plain data: a row per engine and mode, the rates of matrix products, and memory.
    """
    settings = settings or BenchSettings()
    check_engines(engines)
    threads = settings.threads or torch.get_num_threads()
    if settings.keep_memory:
        keep_freed_memory()
    model = build(network, settings)
    plain = [build(other, settings) for other in alternatives_of(model)][-1:]
    points = [find_point(model, number) for number in modes or ()] or usual_points(model)
    chosen = [point.inputs_per_pass for point in points]
    names = [name_of(one) for one in (model, *plain)]
    inputs = model.example_inputs(settings.batch_size).numpy()

    folders = {}
    if any(engine not in IN_MEMORY for engine in engines):
        int8 = sorted({e.removesuffix("-int8") for e in engines if e.endswith("-int8")})
        for name, one in zip(names, (model, *plain), strict=True):
            folders[name] = _export(one, folder / name.replace(" ", "-"), int8)
    contenders, entries = [], {}
    for engine in engines:
        for name, one in zip(names, (model, *plain), strict=True):
            source = one if engine in IN_MEMORY else folders[name]
            runs = Engine(source, IN_MEMORY.get(engine, engine), threads=threads)
            for mode in chosen if one is model else (1,):
                title = f"{engine}: {name}" + (f", {mode} active" if one is model else "")
                entries[title] = (engine, one, mode)
                contenders.append(_contender(title, runs, inputs, mode))
    contenders += [Contender(name, run, SIZE**3) for name, run in products().items()]
    timings = {
        timing.name: timing
        for timing in race(
            contenders, rounds=settings.rounds, warmup=settings.warmup, after_round=after_round
        )
    }
    peak = {name: timings.pop(name).inputs_per_second for name in products()}
    rows = [
        _row(timings, title, engine, one, mode, plain, peak)
        for title, (engine, one, mode) in entries.items()
    ]
    return {
        "batch_size": settings.batch_size,
        "threads": threads,
        "gmacs_of_products": {name: rate / 1e9 for name, rate in peak.items()},
        "rows": rows,
        "memory": {
            engine: memory_of(folders[names[0]], engine, chosen, threads)
            for engine in engines
            if engine not in IN_MEMORY and sys.platform.startswith("linux")
        },
    }


def check_engines(engines: Sequence[str]) -> None:
    """Refuse names that are no engine."""
    known = [*IN_MEMORY, *(name for name in BACKENDS if name not in ("torch", "pt2", *IN_MEMORY))]
    for engine in engines:
        if engine not in known:
            raise ValueError(
                f"There is no engine {engine!r}{did_you_mean(engine, known)}: "
                f"choose from {', '.join(known)}."
            )


def products() -> dict[str, Callable[[], object]]:
    """Make large matrix products: what the machine gives at best."""
    a, b = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    whole = torch.randint(-127, 127, (SIZE, SIZE), dtype=torch.int8)
    return {"float32": lambda: a @ b, "int8": lambda: torch._int_mm(whole, whole)}


def memory_of(folder: Path, engine: str, modes: Sequence[int], threads: int) -> dict[str, Any]:
    """Measure the proportional set size with no, one and all modes open, a fresh process each."""
    found = {}
    for what, some in (("nothing", []), ("one mode", modes[-1:]), ("all modes", modes)):
        arguments = [str(folder), engine, str(threads), *map(str, some)]
        done = subprocess.run(
            [sys.executable, "-c", OPEN_AND_MEASURE, *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        found[what] = json.loads(done.stdout)
    return found


def _export(model: Any, folder: Path, int8: Sequence[str]) -> Path:
    if folder.is_dir():
        return folder
    inputs = model.example_inputs(8)
    labels = np.zeros(len(inputs), dtype=np.int64)
    return export(
        model,
        folder,
        int8=[inputs] if int8 else None,
        evaluation=[(inputs, labels)] if int8 else None,
        measure=False,
        options=ExportOptions(max_loss=100, int8_runtimes=int8 or None),
    )


def _contender(title: str, engine: Engine, inputs: Any, mode: int) -> Contender:
    return Contender(title, lambda: engine(inputs, mode), inputs=len(inputs))


def _row(
    timings: dict[str, Timing],
    title: str,
    engine: str,
    model: nn.Module,
    mode: int,
    plain: list[nn.Module],
    peak: dict[str, float],
) -> dict[str, Any]:
    timing = timings[title]
    macs = count_macs(model, mode).paper
    product = peak["int8" if engine.endswith("int8") else "float32"]
    row: dict[str, Any] = {
        "engine": engine,
        "network": name_of(model),
        "active_streams": None if model in plain else mode,
        "inputs_per_second": timing.inputs_per_second,
        "quartiles": list(timing.spread),
        "share_of_products": timing.inputs_per_second * macs / product,
        "seconds": list(timing.seconds),
    }
    for other in plain:
        for what, against in (("eager", "eager"), ("same_engine", engine)):
            base = timings.get(f"{against}: {name_of(other)}")
            if base is not None:
                median, low, high = timing.speedup_over(base)
                row[f"over_plain_{what}"] = {"median": median, "low": low, "high": high}
    return row


def engines_table(record: dict[str, Any]) -> Any:
    """Show a row per engine and mode."""
    from rich.table import Table

    table = Table(title=f"Batch of {record['batch_size']}, {record['threads']} threads")
    for name in ("engine", "network"):
        table.add_column(name)
    columns = ("active", "inputs/s", "× plain, eager", "× plain, same engine", "of GEMM peak")
    for name in columns:
        table.add_column(name, justify="right")
    for row in record["rows"]:
        ratios = [row.get(f"over_plain_{what}") for what in ("eager", "same_engine")]
        table.add_row(
            row["engine"],
            row["network"],
            str(row["active_streams"] or ""),
            f"{row['inputs_per_second']:.1f}",
            *("" if ratio is None else f"{ratio['median']:.2f}" for ratio in ratios),
            f"{row['share_of_products']:.0%}",
        )
    return table


def memory_lines(record: dict[str, Any]) -> list[str]:
    """Say how much memory a process needs, engine by engine."""
    return [
        f"{engine}: {found['one mode']['pss_megabytes']:.0f} MB with one mode open, "
        f"{found['all modes']['pss_megabytes']:.0f} MB with all; first answer after "
        f"{found['one mode']['first_answer_cpu_seconds']:.2f} s of CPU time"
        for engine, found in record["memory"].items()
    ]


def median_ratio(one: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    """Compare seconds round by round: how many times as fast ``one`` is, median and quartiles.

    >>> median_ratio([1.0, 2.0, 1.0], [2.0, 4.0, 4.0])
    {'median': 2.0, 'low': 2.0, 'high': 3.0}
    """
    ratios = [b / a for a, b in zip(one, other, strict=True)]
    low, middle, high = quartiles(ratios)
    return {"median": middle, "low": low, "high": high}
