"""Measure inputs per second: contenders interleaved in one process, after a warm-up."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Contender:
    """Something that answers ``inputs`` inputs whenever it is called."""

    name: str
    run: Callable[[], object]
    inputs: int


class Speedup(NamedTuple):
    """How many times as fast one contender is as another, over the rounds."""

    median: float
    low: float  # quartiles
    high: float


@dataclass(frozen=True)
class Timing:
    """What a contender took, one entry per round."""

    name: str
    inputs: int
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...] = ()  # of all threads; what else runs hardly changes it

    @property
    def inputs_per_second(self) -> float:
        """Median over the rounds."""
        return self.inputs / statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """Inputs per second at the slower and the faster quartile."""
        low, _, high = quartiles(self.seconds)
        return self.inputs / high, self.inputs / low

    def speedup_over(self, other: "Timing") -> Speedup:
        """Compare round by round: median and quartiles of the ratio of inputs per second.

        The rounds are neighbours in time, so a machine that slows down for a while slows both.
        """
        low, middle, high = quartiles(
            [
                (self.inputs / mine) / (other.inputs / theirs)
                for mine, theirs in zip(self.seconds, other.seconds, strict=True)
            ]
        )
        return Speedup(middle, low, high)


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
    cpu: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for number in range(warmup + rounds):
        first = number % len(contenders)
        for contender in [*contenders[first:], *contenders[:first]]:
            _synchronize()
            start, cpu_start = time.perf_counter(), time.process_time()
            contender.run()
            _synchronize()
            if number >= warmup:
                seconds[contender.name].append(time.perf_counter() - start)
                cpu[contender.name].append(time.process_time() - cpu_start)
        after_round()
    return [
        Timing(one.name, one.inputs, tuple(seconds[one.name]), tuple(cpu[one.name]))
        for one in contenders
    ]


def time_shares(
    model: nn.Module, inputs: Tensor, *, rounds: int = 10, **arguments: Any
) -> dict[str, float]:
    """Measure which share of a pass each part of the model takes; the median over the rounds."""
    parts = {child: part for part, child in model.named_children()}
    starts: dict[nn.Module, float] = {}
    spent: dict[str, float] = {}
    collected: list[dict[str, float]] = []

    def enter(child: nn.Module, *_: object) -> None:
        _synchronize()
        starts[child] = time.perf_counter()

    def leave(child: nn.Module, *_: object) -> None:
        _synchronize()
        part = parts[child]
        spent[part] = spent.get(part, 0.0) + time.perf_counter() - starts[child]

    handles = [child.register_forward_pre_hook(enter) for child in parts]
    handles += [child.register_forward_hook(leave) for child in parts]
    try:
        for _ in range(rounds + 1):
            spent.clear()
            model(inputs, **arguments)
            collected.append({part: t / sum(spent.values()) for part, t in spent.items()})
    finally:
        for handle in handles:
            handle.remove()
    return {
        part: statistics.median(round_[part] for round_ in collected[1:]) for part in collected[0]
    }


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Give the lower quartile, the median and the upper quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
