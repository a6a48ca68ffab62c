"""When requests arrive: made workloads and recorded traces. Every one gives sorted seconds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def poisson(rate: float, seconds: float, rng: np.random.Generator) -> Array:
    """Arrive independently of each other, ``rate`` a second on average."""
    return _thinned(lambda times: np.full_like(times, rate), rate, seconds, rng)


def mmpp(
    rate: float, seconds: float, rng: np.random.Generator, *, burst: float = 4.0, stay: float = 2.0
) -> Array:
    """Arrive in bursts: a Poisson process that switches between two rates.

    The high rate is ``burst`` times the low one, both last ``stay`` seconds on average, and the
    mean is ``rate`` (Markov-modulated Poisson process).
    """
    changes = np.cumsum(rng.exponential(stay, size=int(4 * seconds / stay) + 16))
    low = 2 * rate / (1 + burst)

    def rate_at(times: Array) -> Array:
        is_high = np.searchsorted(changes, times) % 2 == 1
        return np.where(is_high, burst * low, low)

    return _thinned(rate_at, burst * low, seconds, rng)


def diurnal(rate: float, seconds: float, rng: np.random.Generator, *, swing: float = 0.8) -> Array:
    """Arrive as over a day: one period of a sine around ``rate``, from night to night."""

    def rate_at(times: Array) -> Array:
        return rate * (1 - swing * np.cos(2 * np.pi * times / seconds))

    return _thinned(rate_at, rate * (1 + swing), seconds, rng)


def step(
    rate: float, seconds: float, rng: np.random.Generator, *, times: float = 6.0, share: float = 0.4
) -> Array:
    """Arrive steadily at ``rate``, and ``times`` as often in a spike in the middle.

    The spike lasts ``share`` of the whole.
    """
    start, end = seconds * (0.5 - share / 2), seconds * (0.5 + share / 2)

    def rate_at(when: Array) -> Array:
        return np.where((when >= start) & (when < end), rate * times, rate)

    return _thinned(rate_at, rate * max(times, 1.0), seconds, rng)


WORKLOADS: dict[str, Callable[[float, float, np.random.Generator], Array]] = {
    "poisson": poisson,
    "mmpp": mmpp,
    "diurnal": diurnal,
    "step": step,
}


def read_trace(path: str | Path, *, rate: float | None = None, most: int | None = None) -> Array:
    """Read arrival times in seconds, one a line; optionally the first ``most``, at another rate.

    Times count from the first arrival, whatever clock they were taken from. ``rate`` stretches or
    shrinks time so that the mean rate is as wanted and bursts keep their shape.
    """
    path = Path(path)
    try:
        times = np.array([float(line) for line in path.read_text().split()])
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is no trace: one arrival time in seconds a line ({error})."
        ) from None
    if len(times) < 2 or not np.isfinite(times).all():
        raise ValueError(f"{path} is no trace: it needs at least two finite arrival times.")
    times = np.sort(times)[:most]
    times = times - times[0]
    if len(times) < 2 or times[-1] == times[0]:
        raise ValueError(
            f"{path} has fewer than two arrivals at different times in that part: take a longer "
            f"one."
        )
    if rate is not None:
        times = times * (len(times) / rate / float(times[-1]))
    return times


def _thinned(
    rate_at: Callable[[Array], Array], highest: float, seconds: float, rng: np.random.Generator
) -> Array:
    """Draw at the highest rate and keep each arrival with probability rate / highest."""
    if highest <= 0 or seconds <= 0:
        raise ValueError(f"A workload needs a rate and seconds above 0, not {highest}, {seconds}.")
    times = np.sort(rng.uniform(0, seconds, size=rng.poisson(highest * seconds)))
    return times[rng.uniform(size=len(times)) * highest < rate_at(times)]
