"""Race the operating points of models against each other and what one would run instead."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mimonets._device import to_channels_last
from mimonets._memory import keep_freed_memory
from mimonets._operating_point import OperatingPoint
from mimonets.evaluation.memory import peak_memory
from mimonets.evaluation.throughput import Contender, Timing, race, time_shares
from mimonets.models import MultipleInput, alternatives_of, find_point, name_of, usual_points
from mimonets.models.base import Model
from mimonets.models.registry import model_class_for


@dataclass(frozen=True)
class BenchSettings:
    """How to measure. Stated with every result."""

    batch_size: int = 16
    rounds: int = 15
    warmup: int = 2
    threads: int | None = None  # None: as many as PyTorch chooses
    dtype: str = "float32"
    memory_format: str = "contiguous_format"  # or channels_last
    device: str = "cpu"
    compile: bool = False  # through torch.compile
    keep_memory: bool = True  # keep freed memory for the next pass, see mimonets._memory


@dataclass(frozen=True)
class BenchResult:
    """Timings of operating points of some models, and of what one would run instead."""

    settings: BenchSettings
    timings: list[Timing]
    modes: dict[str, int]  # contender -> inputs per pass, of the models themselves
    networks: dict[str, Any]  # contender -> its config, or the model where there is none
    points: dict[str, OperatingPoint]  # contender -> where it runs
    baselines: list[str]
    time_shares: dict[str, dict[str, float]]  # mode -> part -> share of the time
    peak_bytes: dict[str, int]  # contender -> memory of one pass beyond weights and inputs

    def timing(self, name: str) -> Timing:
        """Find the timing of one contender."""
        return next(timing for timing in self.timings if timing.name == name)

    def as_dict(self) -> dict[str, Any]:
        """Give everything as plain data for JSON."""
        return {
            "settings": asdict(self.settings),
            "contenders": [
                {
                    "name": timing.name,
                    "active_streams": self.modes.get(timing.name),
                    "inputs_per_second": timing.inputs_per_second,
                    "quartiles": list(timing.spread),
                    "speedup": {
                        base: dict(
                            zip(
                                ("median", "low", "high"),
                                timing.speedup_over(self.timing(base)),
                                strict=True,
                            )
                        )
                        for base in self.baselines
                    },
                    "peak_bytes": self.peak_bytes[timing.name],
                    "seconds": list(timing.seconds),
                }
                for timing in self.timings
            ],
            "time_shares": self.time_shares,
        }


@dataclass(frozen=True)
class _Entry:
    model: Any
    point: OperatingPoint

    def runner(self, inputs: Tensor, settings: BenchSettings) -> Callable[[], Any]:
        run = torch.compile(self.model) if settings.compile else self.model
        return partial(run, inputs, **self.point.options)


@torch.inference_mode()
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
        settings: batch size, rounds and so on.
        after_round: called after each round, for a progress bar.
    """
    settings = settings or BenchSettings()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    if settings.keep_memory:
        keep_freed_memory()
    entries: dict[str, _Entry] = {}
    others: dict[str, nn.Module] = {}
    named: dict[str, int] = {}  # how many of the models have this name
    for network in models if isinstance(models, list | tuple) else [models]:
        model = build(network, settings)
        name = name_of(model)
        named[name] = named.get(name, 0) + 1
        name += f" #{named[name]}" if named[name] > 1 else ""
        for point in [find_point(model, number) for number in points or ()] or usual_points(model):
            entries[f"{name}, {point.name}"] = _Entry(model, point)
        for alternative in alternatives_of(model):
            other = build(alternative, settings)
            same = [one for one in others.values() if _described(one) == _described(other)]
            number = sum(name_of(one) == name_of(other) for one in others.values())
            if not same:
                others[name_of(other) + (f" #{number + 1}" if number else "")] = other
    own = {name: entry.point.inputs_per_pass for name, entry in entries.items()}
    entries |= {name: _Entry(other, find_point(other, None)) for name, other in others.items()}

    examples = {
        name: entry.model.example_inputs(settings.batch_size) for name, entry in entries.items()
    }
    first = next(iter(examples))
    for name, example in examples.items():
        if example.shape != examples[first].shape:
            raise ValueError(
                f"Networks that are raced take the same inputs, but {first} takes "
                f"{tuple(examples[first].shape[1:])} and {name} takes {tuple(example.shape[1:])}: "
                f"time them one by one."
            )
    inputs = _place_inputs(examples[first], settings)
    contenders = [
        Contender(name, entry.runner(inputs, settings), inputs=len(inputs))
        for name, entry in entries.items()
    ]
    timings = race(
        contenders, rounds=settings.rounds, warmup=settings.warmup, after_round=after_round
    )
    return BenchResult(
        settings=settings,
        timings=timings,
        modes=own,
        networks={name: _described(entry.model) for name, entry in entries.items()},
        points={name: entry.point for name, entry in entries.items()},
        baselines=list(others),
        time_shares={
            name: time_shares(
                entries[name].model,
                inputs,
                rounds=min(5, settings.rounds),
                **entries[name].point.options,
            )
            for name in own
            if not getattr(entries[name].model, "cost_parts", ())  # parts are inside the blocks
        },
        peak_bytes={
            name: peak_memory(partial(entry.model, inputs, **entry.point.options))
            for name, entry in entries.items()
        },
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
    return _place(model, settings).eval()


def _described(model: Any) -> Any:
    """Give the config that describes a model completely; of a third-party network, itself."""
    return model.config if isinstance(model, Model) else model


def _place_inputs(inputs: Tensor, settings: BenchSettings) -> Tensor:
    if not inputs.is_floating_point():
        return inputs.to(settings.device)
    return inputs.to(
        device=settings.device,
        dtype=getattr(torch, settings.dtype),
        memory_format=getattr(torch, settings.memory_format),
    )


def _place(model: nn.Module, settings: BenchSettings) -> nn.Module:
    model = model.to(device=settings.device, dtype=getattr(torch, settings.dtype))
    if settings.memory_format == "channels_last":
        to_channels_last(model)
    return model
