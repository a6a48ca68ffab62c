"""Inputs per second of several networks in the best engine, all of them raced in one process."""

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
from torch import nn

from mimonets.evaluation.macs import count_macs
from mimonets.evaluation.memory import peak_memory
from mimonets.evaluation.throughput import Contender, race
from mimonets.inference import Engine, export
from mimonets.models.base import eval_mode

ENGINES = ("eager", "onnxruntime", "openvino")  # float32: each answers what PyTorch does


@dataclass(frozen=True)
class Point:
    """A network in one mode: something a user could run."""

    name: str
    network: Any
    active_streams: int = 1


def measure_speeds(
    points: Sequence[Point],
    folder: Path,
    engines: Sequence[str] = ENGINES,
    *,
    batch_size: int = 64,
    rounds: int = 9,
    after_round: Callable[[], object] = lambda: None,
) -> list[dict[str, Any]]:
    """Race every point in every engine on one thread; one row of plain data for each point.

    Seconds are CPU time, which others on the machine disturb little. Speed does not depend on the
    weights, so networks need not be trained.

    Args:
        points: names must differ.
        folder: an empty one, for exports.
        engines: of :data:`ENGINES`; the best of them is named in each row.
        batch_size: inputs of a call, for every point alike.
        rounds: how often each is timed, in turn with the others.
        after_round: called after each round, for a progress bar.
    """
    with one_thread():
        contenders = [
            Contender(
                f"{engine}: {point.name}", _runner(point, engine, folder, batch_size), batch_size
            )
            for point in points
            for engine in engines
        ]
        raced = race(contenders, rounds=rounds, after_round=after_round, clock=time.process_time)
        timings = {timing.name: timing for timing in raced}
    return [
        _row(point, {engine: timings[f"{engine}: {point.name}"] for engine in engines}, batch_size)
        for point in points
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


def _runner(point: Point, engine: str, folder: Path, batch_size: int) -> Callable[[], object]:
    inputs = point.network.example_inputs(batch_size).numpy()
    if engine == "eager":
        source: Any = point.network
    else:
        source = folder / re.sub(r"[^A-Za-z0-9=.]+", "-", point.name).strip("-")
        if not source.is_dir():
            print(f"exporting {point.name}", file=sys.stderr, flush=True)
            modes = [point.active_streams]
            export(point.network, source, modes=modes, measure=False)
    run = Engine(source, "torch" if engine == "eager" else engine, threads=1)
    return lambda: run(inputs, point.active_streams)


def _row(point: Point, timings: dict[str, Any], batch_size: int) -> dict[str, Any]:
    best = max(timings, key=lambda engine: timings[engine].inputs_per_second)
    images = point.network.example_inputs(batch_size)
    with eval_mode(point.network):
        peak = peak_memory(lambda: point.network(images, active_streams=point.active_streams))
    return {
        "what": point.name,
        "inputs_per_second": timings[best].inputs_per_second,
        "engine": best,
        "quartiles": list(timings[best].spread),
        "engines": {name: timing.inputs_per_second for name, timing in timings.items()},
        "macs": count_macs(point.network, point.active_streams).paper,
        "weight_bytes": weight_bytes(point.network),
        "peak_bytes": peak,
    }
