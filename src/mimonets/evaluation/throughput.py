"""Measure inputs per second: contenders interleaved in one process, after a warm-up."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mimonets.models import MIMOConvConfig, WideResNetConfig
from mimonets.models.registry import model_class_for


@dataclass(frozen=True)
class Contender:
    """Something that answers ``inputs`` inputs whenever it is called."""

    name: str
    run: Callable[[], object]
    inputs: int


@dataclass(frozen=True)
class Timing:
    """What a contender took, one entry per round."""

    name: str
    inputs: int
    seconds: tuple[float, ...]

    @property
    def inputs_per_second(self) -> float:
        """Median over the rounds."""
        return self.inputs / statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """Inputs per second at the slower and the faster quartile."""
        low, _, high = _quartiles(self.seconds)
        return self.inputs / high, self.inputs / low

    def speedup_over(self, other: "Timing") -> tuple[float, float, float]:
        """Compare round by round: median and quartiles of the ratio of inputs per second.

        The rounds are neighbours in time, so a machine that slows down for a while slows both.
        """
        low, middle, high = _quartiles(
            [
                (self.inputs / mine) / (other.inputs / theirs)
                for mine, theirs in zip(self.seconds, other.seconds, strict=True)
            ]
        )
        return middle, low, high


def race(
    contenders: Sequence[Contender],
    *,
    rounds: int = 15,
    warmup: int = 2,
    after_round: Callable[[], object] = lambda: None,
) -> list[Timing]:
    """Time the contenders in turn, round after round, each round starting with another one."""
    if rounds < 1 or warmup < 0 or not contenders:
        raise ValueError(
            f"Cannot race {len(contenders)} contenders over {rounds} rounds after {warmup} warm-up "
            f"rounds: at least one contender and one round are needed."
        )
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for number in range(warmup + rounds):
        first = number % len(contenders)
        for contender in [*contenders[first:], *contenders[:first]]:
            _synchronize()
            start = time.perf_counter()
            contender.run()
            _synchronize()
            if number >= warmup:
                seconds[contender.name].append(time.perf_counter() - start)
        after_round()
    return [
        Timing(contender.name, contender.inputs, tuple(seconds[contender.name]))
        for contender in contenders
    ]


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


@dataclass(frozen=True)
class BenchResult:
    """Timings of all modes of a model and of what one would run instead."""

    settings: BenchSettings
    timings: list[Timing]
    modes: dict[str, int]  # contender -> active streams, for the modes of the model itself
    baselines: list[str]
    time_shares: dict[str, dict[str, float]]  # mode -> part -> share of the time

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
                    "seconds": list(timing.seconds),
                }
                for timing in self.timings
            ],
            "time_shares": self.time_shares,
        }


@torch.inference_mode()
def bench(
    config: Any,
    modes: Sequence[int] | None = None,
    settings: BenchSettings | None = None,
    *,
    after_round: Callable[[], object] = lambda: None,
) -> BenchResult:
    """Time every mode of a model against what one would run instead.

    The weights are random: speed does not depend on them.
    """
    settings = settings or BenchSettings()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    model = _place(model_class_for(config)(config), settings).eval()
    inputs = _place(model.example_inputs(settings.batch_size), settings)
    name = model_name(config)
    own = {f"{name}, {mode} active": mode for mode in modes or range(1, model.num_streams + 1)}
    contenders = [
        _contender(label, model, inputs, settings, active_streams=mode)
        for label, mode in own.items()
    ]
    others = single_input_alternatives(config)
    for other in others:
        network = _place(model_class_for(other)(other), settings).eval()
        contenders.append(_contender(model_name(other), network, inputs, settings))
    timings = race(
        contenders, rounds=settings.rounds, warmup=settings.warmup, after_round=after_round
    )
    shares = {
        label: time_shares(model, inputs, rounds=settings.rounds, active_streams=mode)
        for label, mode in own.items()
    }
    return BenchResult(settings, timings, own, [model_name(other) for other in others], shares)


def single_input_alternatives(config: Any) -> list[Any]:
    """Configs of the networks to compare with: one stream, and no superposition at all."""
    if not isinstance(config, MIMOConvConfig):
        return []
    shared = {
        name: getattr(config, name)
        for name in ("depth", "width", "in_channels", "num_classes", "image_size")
    }
    one_stream = [replace(config, num_streams=1)] if config.num_streams > 1 else []
    return [*one_stream, WideResNetConfig(**shared)]


def time_shares(
    model: nn.Module, images: Tensor, *, rounds: int = 10, **arguments: Any
) -> dict[str, float]:
    """Measure which share of a pass each part of the model takes; the median over the rounds."""
    starts: dict[str, float] = {}
    spent: dict[str, float] = {}
    collected: list[dict[str, float]] = []
    handles = []

    def enter(part: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            _synchronize()
            starts[part] = time.perf_counter()

        return hook

    def leave(part: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            _synchronize()
            spent[part] = spent.get(part, 0.0) + time.perf_counter() - starts[part]

        return hook

    for part, child in model.named_children():
        handles.append(child.register_forward_pre_hook(enter(part)))
        handles.append(child.register_forward_hook(leave(part)))
    try:
        for _ in range(rounds + 1):
            spent.clear()
            model(images, **arguments)
            collected.append({part: t / sum(spent.values()) for part, t in spent.items()})
    finally:
        for handle in handles:
            handle.remove()
    return {
        part: statistics.median(round_[part] for round_ in collected[1:]) for part in collected[0]
    }


def model_name(config: Any) -> str:
    """Name a model as the paper does.

    >>> model_name(MIMOConvConfig(num_streams=4)), model_name(WideResNetConfig())
    ('MIMOConv-28-10 (N=4)', 'WideResNet-28-10')
    """
    name = f"{model_class_for(config).__name__}-{config.depth}-{config.width}"
    streams = getattr(config, "num_streams", None)
    return name if streams is None else f"{name} (N={streams})"


def _place(thing: Any, settings: BenchSettings) -> Any:
    return thing.to(
        device=settings.device,
        dtype=getattr(torch, settings.dtype),
        memory_format=getattr(torch, settings.memory_format),
    )


def _contender(
    name: str, model: nn.Module, inputs: Tensor, settings: BenchSettings, **arguments: Any
) -> Contender:
    run = torch.compile(model) if settings.compile else model
    return Contender(name, lambda: run(inputs, **arguments), inputs=len(inputs))


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
