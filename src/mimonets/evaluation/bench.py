"""Race the operating points of models against each other and what one would run instead.

What takes part is a network at one operating point, in one engine.
"""

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mimonets._device import to_channels_last, use_threads
from mimonets._memory import keep_freed_memory
from mimonets._messages import did_you_mean
from mimonets._operating_point import OperatingPoint
from mimonets.evaluation.memory import peak_memory
from mimonets.evaluation.throughput import Contender, Timing, race, time_shares
from mimonets.inference import BACKENDS, Engine, ExportOptions, export
from mimonets.models import (
    MultipleInput,
    alternatives_of,
    find_point,
    fixed_at,
    name_of,
    usual_points,
)
from mimonets.models.base import Model
from mimonets.models.registry import model_class_for

ENGINES = ("eager", *(name for name in BACKENDS if name not in ("torch", "pt2")))


@dataclass(frozen=True)
class BenchSettings:
    """How to measure. Stated with every result."""

    batch_sizes: tuple[int, ...] = (16,)  # inputs per call; each is timed
    rounds: int = 15
    warmup: int = 2
    threads: int | None = None  # None: as many as PyTorch chooses
    engines: tuple[str, ...] = ("eager",)  # of ENGINES; eager is PyTorch as it is
    dtype: str = "float32"  # of eager; like memory_format, device and compile
    memory_format: str = "contiguous_format"  # or channels_last
    device: str = "cpu"
    compile: bool = False  # through torch.compile
    keep_memory: bool = True  # keep freed memory for the next pass, see mimonets._memory

    def heading(self, engine: str, batch_size: int) -> str:
        """Say what tells the timings of a network apart, before its name.

        >>> BenchSettings(batch_sizes=(4, 64)).heading("eager", 64)
        'batch 64: '
        """
        words = [engine] if len(self.engines) > 1 else []
        words += [f"batch {batch_size}"] if len(self.batch_sizes) > 1 else []
        return ", ".join(words) + (": " if words else "")

    def __post_init__(self) -> None:
        for engine in self.engines:
            if engine not in ENGINES:
                raise ValueError(
                    f"There is no engine {engine!r}{did_you_mean(engine, ENGINES)}: "
                    f"choose from {', '.join(ENGINES)}."
                )
            if engine != "eager" and (self.dtype, self.device) != ("float32", "cpu"):
                raise ValueError(
                    f"{engine} takes float32 on a CPU: leave out dtype={self.dtype} and "
                    f"device={self.device}, or time eager alone."
                )


@dataclass(frozen=True)
class Candidate:
    """A network at one operating point in one engine: something a user could run."""

    model: Any
    point: OperatingPoint
    engine: str
    inputs: Tensor

    @property
    def network(self) -> Any:
        """The config that describes the model completely; of a third-party network, itself."""
        return _described(self.model)

    def in_pytorch(self) -> Any:
        """Answer the inputs in PyTorch as it is, whatever the engine."""
        return self.model(self.inputs, **self.point.options)


@dataclass(frozen=True)
class BenchResult:
    """Timings of operating points of some models, and of what one would run instead."""

    settings: BenchSettings
    timings: list[Timing]
    candidates: dict[str, Candidate]  # what was timed, by its name
    baselines: list[str]  # those of them that one would run instead
    time_shares: dict[str, dict[str, float]]  # candidate -> part -> share of the time in PyTorch
    peak_bytes: dict[str, int]  # candidate -> memory of one pass beyond weights and inputs

    @property
    def modes(self) -> dict[str, int]:
        """Inputs per pass of the candidates that are the models themselves."""
        return {
            name: candidate.point.inputs_per_pass
            for name, candidate in self.candidates.items()
            if name not in self.baselines
        }

    def timing(self, name: str) -> Timing:
        """Find the timing of one candidate."""
        return next(timing for timing in self.timings if timing.name == name)

    def baselines_in(self, engine: str, batch_size: int) -> list[str]:
        """List the baselines that ran in an engine, with so many inputs per call."""
        return [
            name
            for name in self.baselines
            if self.candidates[name].engine == engine
            and len(self.candidates[name].inputs) == batch_size
        ]

    def bases_of(self, timing: Timing) -> list[str]:
        """List what a candidate is compared with: baselines in the first engine and in its own."""
        engines = (self.settings.engines[0], self.candidates[timing.name].engine)
        found = [self.baselines_in(one, timing.inputs) for one in dict.fromkeys(engines)]
        return list(chain(*found))

    def as_dict(self) -> dict[str, Any]:
        """Give everything as plain data for JSON."""
        return {
            "settings": asdict(self.settings),
            "contenders": [self._contender(timing) for timing in self.timings],
            "time_shares": self.time_shares,
        }

    def _contender(self, timing: Timing) -> dict[str, Any]:
        return {
            "name": timing.name,
            "engine": self.candidates[timing.name].engine,
            "batch_size": timing.inputs,
            "active_streams": self.modes.get(timing.name),
            "inputs_per_second": timing.inputs_per_second,
            "quartiles": list(timing.spread),
            "speedup": {
                base: timing.speedup_over(self.timing(base))._asdict()
                for base in self.bases_of(timing)
            },
            "peak_bytes": self.peak_bytes[timing.name],
            "seconds": list(timing.seconds),
            "cpu_seconds": list(timing.cpu_seconds),
        }


def bench(
    models: Any | Sequence[Any],
    points: Sequence[int | None] | None = None,
    settings: BenchSettings | None = None,
    *,
    after_round: Callable[[], object] = lambda: None,
) -> BenchResult:
    """Time operating points of one or more models against what one would run instead.

    Args:
        models: that take the same inputs: configs of ours, whose weights are then random, which
            changes no speed; or anything that keeps to
            :class:`~mimonets.models.MultipleInput`.
        points: their numbers, such as numbers of active streams, None for the fastest of a model;
            by default :func:`~mimonets.models.usual_points`.
        settings: batch sizes, rounds, engines and so on.
        after_round: called after each round, for a progress bar.
    """
    settings = settings or BenchSettings()
    found: dict[str, tuple[Any, OperatingPoint]] = {}
    others: dict[str, nn.Module] = {}
    named: dict[str, int] = {}  # how many of the models have this name
    for network in models if isinstance(models, list | tuple) else [models]:
        model = build(network, settings)
        name = name_of(model)
        named[name] = named.get(name, 0) + 1
        name += f" #{named[name]}" if named[name] > 1 else ""
        for point in [find_point(model, number) for number in points or ()] or usual_points(model):
            found[f"{name}, {point.name}"] = (model, point)
        for alternative in alternatives_of(model):
            other = build(alternative, settings)
            same = [one for one in others.values() if _described(one) == _described(other)]
            number = sum(name_of(one) == name_of(other) for one in others.values())
            if not same:
                others[name_of(other) + (f" #{number + 1}" if number else "")] = other
    found |= {name: (other, find_point(other, None)) for name, other in others.items()}

    most = max(settings.batch_sizes)
    examples = {name: model.example_inputs(most) for name, (model, _) in found.items()}
    first = next(iter(examples))
    for name, example in examples.items():
        if example.shape != examples[first].shape:
            raise ValueError(
                f"Networks that are raced take the same inputs, but {first} takes "
                f"{tuple(examples[first].shape[1:])} and {name} takes {tuple(example.shape[1:])}: "
                f"time them one by one."
            )
    inputs = examples[first].to(settings.device)
    if inputs.is_floating_point():
        layout = getattr(torch, settings.memory_format)
        inputs = inputs.to(dtype=getattr(torch, settings.dtype), memory_format=layout)
    candidates, baselines = {}, []
    for size, engine in product(settings.batch_sizes, settings.engines):
        for name, (model, point) in found.items():
            title = settings.heading(engine, size) + name
            candidates[title] = Candidate(model, point, engine, inputs[:size])
            baselines += [title] if name in others else []
    timings = race_candidates(candidates, settings, after_round=after_round)
    with use_threads(settings.threads), torch.inference_mode():
        return BenchResult(
            settings=settings,
            timings=timings,
            candidates=candidates,
            baselines=baselines,
            time_shares={
                name: time_shares(
                    one.model, one.inputs, rounds=min(5, settings.rounds), **one.point.options
                )
                for name, one in candidates.items()
                if name not in baselines
                and one.engine == "eager"
                and not getattr(one.model, "cost_parts", ())  # parts are inside the blocks
            },
            peak_bytes={name: peak_memory(one.in_pytorch) for name, one in candidates.items()},
        )


def race_candidates(
    candidates: Mapping[str, Candidate],
    settings: BenchSettings,
    *,
    after_round: Callable[[], object] = lambda: None,
) -> list[Timing]:
    """Time candidates in turn, each in its engine; exports are made in a temporary folder."""
    if settings.keep_memory:
        keep_freed_memory()
    with use_threads(settings.threads), tempfile.TemporaryDirectory() as exports:
        contenders = [
            Contender(name, _runner(one, settings, Path(exports)), inputs=len(one.inputs))
            for name, one in candidates.items()
        ]
        with torch.inference_mode():
            return race(
                contenders,
                rounds=settings.rounds,
                warmup=settings.warmup,
                after_round=after_round,
            )


def build(network: Any, settings: BenchSettings) -> Any:
    """Make the model of a config, or copy one, where and as it is to run."""
    if isinstance(network, nn.Module):
        if not isinstance(network, MultipleInput):
            raise ValueError(
                f"{type(network).__name__} cannot be timed: it needs num_streams, example_inputs("
                f"batch_size), input_spec (None will do) and forward(x, active_streams=...)."
            )
        model: nn.Module = copy.deepcopy(network)
    else:
        model = model_class_for(network)(network)
    model = model.to(device=settings.device, dtype=getattr(torch, settings.dtype))
    if settings.memory_format == "channels_last":
        to_channels_last(model)
    return model.eval()


def _described(model: Any) -> Any:
    """Give the config that describes a model completely; of a third-party network, itself."""
    return model.config if isinstance(model, Model) else model


def _runner(one: Candidate, settings: BenchSettings, exports: Path) -> Callable[[], object]:
    if one.engine == "eager":
        model = torch.compile(one.model) if settings.compile else one.model
        return partial(model, one.inputs, **one.point.options)
    source = fixed_at(one.model, one.point)
    if one.engine != "compiled":
        runtime = one.engine.partition("-")[0]  # for all engines of a runtime
        folder = exports / f"{id(one.model)}-{one.point.number}-{runtime}"
        engines = [name for name in settings.engines if name.startswith(runtime)]
        source = folder if folder.is_dir() else _export(source, folder, one, engines)
    engine = Engine(source, one.engine, threads=torch.get_num_threads())
    return partial(engine, one.inputs.numpy(), one.point.inputs_per_pass)


def _export(model: Any, folder: Path, one: Candidate, engines: Sequence[str]) -> Path:
    """Export one operating point; int8 is calibrated on random inputs, which changes no speed."""
    int8 = [engine.removesuffix("-int8") for engine in engines if engine.endswith("-int8")]
    inputs = model.example_inputs(8)
    labels = np.zeros(len(inputs), dtype=np.int64)
    return export(
        model,
        folder,
        formats=("openvino" if one.engine.startswith("openvino") else "onnx",),
        modes=[one.point.inputs_per_pass],
        int8=[inputs] if int8 else None,
        evaluation=[(inputs, labels)] if int8 else None,
        options=ExportOptions(max_loss=100, int8_runtimes=int8 or None),
        measure=False,
    )
