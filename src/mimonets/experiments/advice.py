"""What ``compare`` says in the end: intervals, one sentence of advice, and the Pareto plot.

A row has an ``accuracy``, or a ``loss`` where answers are values and less is better.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mimonets._figure import new_axes, save_figure
from mimonets._seeds import mean_and_deviation, wilson_interval

Row = Mapping[str, Any]
# 95 %, two-sided, by number of seeds; 1.96 for more.
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}


def interval(by_seed: Sequence[float], total: int, deviation: float | None = None) -> float:
    r"""Half the 95 % interval of an accuracy or a loss over seeds and test items.

    .. math:: \sqrt{(t \, s / \sqrt{k})^2 + h^2}

    with the standard deviation s over k seeds, Student's t, and the half interval h over the test
    items: Wilson's for an accuracy, 1.96 standard errors for a loss with this ``deviation``.

    >>> round(interval([0.9, 0.9, 0.9], 100), 3), interval([0.88, 0.9, 0.92], 100) > 0.07
    (0.06, True)
    >>> round(interval([2.0], 100, deviation=1.0), 3)
    0.196
    """
    mean, spread = mean_and_deviation(by_seed)
    assert mean is not None
    count = len(by_seed)
    over_seeds = STUDENT.get(count, 1.96) * (spread or 0.0) / math.sqrt(count)
    if deviation is not None:
        return math.hypot(over_seeds, 1.96 * deviation / math.sqrt(total))
    low, high = wilson_interval(round(mean * total), total)
    return min(1.0, math.hypot(over_seeds, (high - low) / 2))


def goal(row: Row) -> float:
    """Give what is to be large: the accuracy, or the loss below zero."""
    return float(row["accuracy"]) if "accuracy" in row else -float(row["loss"])


def written(row: Row) -> str:
    """Write accuracy in per cent, or loss, with the interval.

    >>> written({"accuracy": 0.912, "interval": 0.004}), written({"loss": 0.5, "interval": 0.025})
    ('91.2 ± 0.4', 'loss 0.5 ± 0.025')
    """
    if "accuracy" in row:
        return f"{row['accuracy'] * 100:.1f} ± {row['interval'] * 100:.1f}"
    return f"loss {row['loss']:.3g} ± {row['interval']:.2g}"


def advise(rows: Sequence[Row], *, speed: float | None = None, macs: float | None = None) -> str:
    """Say in a sentence what to run. Without an aim: at the cost of the cheapest superposed one.

    MACs are the same in every run, and measured speeds are not. Of candidates within the intervals
    of the best, the plainest is taken: the first row.

    >>> row = {"accuracy": 0.9, "interval": 0.01, "macs": 1e6, "inputs_per_pass": 1}
    >>> rows = [row | {"name": "as it is", "speed": 1.0}, row | {"name": "small", "speed": 3.5}]
    >>> advise(rows, speed=3)
    'At 3x the speed: small 90.0 ± 1.0: take small.'
    """
    if speed is None and macs is None:
        macs = min([row["macs"] for row in rows if row["inputs_per_pass"] > 1] or [rows[0]["macs"]])
    if macs is not None:
        aim, fitting = f"At {macs / 1e6:.3g} MMAC", [row for row in rows if row["macs"] <= macs]
    else:
        assert speed is not None
        aim, fitting = f"At {speed:.3g}x the speed", [row for row in rows if row["speed"] >= speed]
    if not fitting:
        least = min(rows, key=lambda row: row["macs"])
        best = max(rows, key=lambda row: row["speed"]) if macs is None else least
        found = f"{best['speed']:.3g}x" if macs is None else f"{best['macs'] / 1e6:.3g} MMAC"
        return (
            f"{aim}: no candidate gets there; the {'fastest' if macs is None else 'cheapest'} is "
            f"{best['name']}, {found} at {written(best)}."
        )
    by_score = sorted(fitting, key=lambda row: -goal(row))
    best = by_score[0]
    close = [
        row
        for row in fitting
        if row is best or goal(best) - goal(row) < math.hypot(best["interval"], row["interval"])
    ]
    taken, *others = close
    best_of: dict[str, Row] = {}  # of float32 and int8
    for row in by_score:
        best_of.setdefault(row.get("base", row["name"]), row)
    listed = ", ".join(f"{row['name']} {written(row)}" for row in [*best_of.values()][:4])
    names = "; ".join(row["name"] for row in others)
    also = f" (within the intervals: {names})" if others else ""
    return f"{aim}: {listed}: take {taken['name']}{also}."


def pareto(rows: Sequence[Row]) -> list[Row]:
    """Keep the rows to which no other one is better in one way and no worse in the other."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: (-row["inputs_per_second"], -goal(row))):
        if not found or goal(row) > goal(found[-1]):
            found.append(row)
    return found[::-1]


def plot(rows: Sequence[Row], path: Path) -> Path:
    """Draw accuracy or loss against inputs per second, and the front that nothing else beats."""
    has_classes = "accuracy" in rows[0]
    name, scale = ("accuracy", 100) if has_classes else ("loss", 1)
    figure, axes = new_axes()
    bases = list(dict.fromkeys(row["base"] for row in rows))
    for row in rows:
        int8 = row["name"] != row["base"]
        axes.errorbar(
            *(row["inputs_per_second"], row[name] * scale),
            yerr=row["interval"] * scale,
            marker="s" if row["inputs_per_pass"] > 1 else "o",
            color=f"C{bases.index(row['base']) % 10}",
            markerfacecolor="white" if int8 else None,
            **{"capsize": 4, "linestyle": "none", "label": None if int8 else row["name"]},
        )
    front = pareto(rows)
    speeds = [row["inputs_per_second"] for row in rows]
    if max(speeds) > 4 * min(speeds):
        axes.set_xscale("log")
    low, high = axes.get_ylim()
    if has_classes:
        axes.set_ylim(max(low, 0), min(high, 101))
    # The best score at each speed or above it, from the slowest candidate to the fastest.
    best = [row[name] * scale for row in front]
    axes.plot(
        [min(speeds), *(row["inputs_per_second"] for row in front), max(speeds)],
        [best[0], *best, low if has_classes else high],
        **{"drawstyle": "steps-pre", "color": "0.7", "zorder": 0, "label": "Pareto front"},
    )
    axes.set_xlabel("inputs per second in the best engine")
    axes.set_ylabel(f"test {name}{', %,' if has_classes else ''} with 95 % interval")
    axes.set_title("circle: one input per pass, square: several; hollow: int8", fontsize="small")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return save_figure(figure, path)
