"""The tables and the plot that bench, evaluate and train show."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

from mimonets._figure import family_colour, new_axes, save_figure
from mimonets._operating_point import OperatingPoint
from mimonets._show import make_table, mmac
from mimonets.evaluation.accuracy import PointAccuracy
from mimonets.evaluation.bench import BenchResult


def bench_table(result: BenchResult, costs: dict[str, float]) -> Any:
    """Lay out inputs per second: one row per contender, its speedups and its MMACs per input.

    Speedups are over the baselines in the first engine and, where there are several, in its own.
    """
    settings = result.settings
    several = len(settings.engines) > 1
    start = (settings.engines[0], settings.batch_sizes[0])
    first = [base.removeprefix(settings.heading(*start)) for base in result.baselines_in(*start)]
    sizes = ", ".join(map(str, settings.batch_sizes))
    same = [f"{base}, same engine" for base in first if several]
    bases = [*(f"{settings.engines[0]}: {base}" if several else base for base in first), *same]
    speed = ["network", "inputs/s", "quartiles", "CPU ms/input"]
    table = make_table(
        f"Inputs per second: median of {settings.rounds} interleaved rounds",
        [*speed, *(f"× {base}" for base in bases), "MMAC/input", "peak MB"],
        f"batch {sizes}, {settings.dtype}, {settings.memory_format}, "
        f"{'compiled' if settings.compile else ', '.join(settings.engines)}, {settings.device}, "
        f"{settings.threads} threads",
    )
    for timing in result.timings:
        low, high = timing.spread
        bases = result.bases_of(timing)
        bases = (bases + bases)[: len(first) + len(same)]  # in the first engine both are the same
        table.add_row(
            timing.name,
            f"[bold]{timing.inputs_per_second:.1f}[/]",
            f"{low:.1f}-{high:.1f}",
            f"{1000 * median(timing.cpu_seconds) / timing.inputs:.3g}"
            if timing.cpu_seconds
            else "",
            *[f"{timing.speedup_over(result.timing(base))[0]:.2f}" for base in bases],
            mmac(costs[timing.name]) if timing.name in costs else "",
            f"{result.peak_bytes[timing.name] / 1e6:.0f}",
        )
    return table


def shares_line(result: BenchResult) -> str:
    """Say which parts the fastest operating point spends its time in."""
    name = max(result.time_shares, key=lambda label: result.modes[label])
    shares = result.time_shares[name]
    parts = ", ".join(f"{part} {share:.1%}" for part, share in shares.items())
    return f"Time of {name} by part: {parts}."


def accuracy_table(title: str, rows: Sequence[tuple[OperatingPoint, PointAccuracy, float]]) -> Any:
    """Lay out accuracy by operating point, with how sure we are of it and what it costs."""
    names = ("operating point", "accuracy", "95 % interval", "by position", "loss")
    table = make_table(title, [*names, "calibration error", "MMAC/input"], words=())
    for point, result, macs in rows:
        low, high = result.interval
        worst, best = min(result.per_stream), max(result.per_stream)
        table.add_row(
            point.name,
            f"{result.accuracy:.2%}",
            f"{low:.2%} to {high:.2%}",
            f"{worst:.2%} to {best:.2%}",
            f"{result.loss:.3f}",
            f"{result.calibration_error:.3f}",
            mmac(macs),
        )
    return table


def plot_bench(result: BenchResult, path: str | Path) -> Path:
    """Draw inputs per second against active streams, beside the baselines and the ideal line."""
    figure, axes = new_axes()
    for base, style in zip(result.baselines, cycle(("--", ":", "-.")), strict=False):
        rate = result.timing(base).inputs_per_second
        axes.axhline(rate, color=family_colour(base), linestyle=style, label=base)
    ticks = sorted(set(result.modes.values()))
    one_stream = _one_stream(result)
    if one_stream is not None:
        ideal = [result.timing(one_stream).inputs_per_second * mode for mode in ticks]
        axes.plot(ticks, ideal, color="0.75", label="ideal: N times one stream")
    models = list(dict.fromkeys(name.rpartition(", ")[0] for name in result.modes))
    for model in models:
        points = sorted(
            (mode, result.timing(name))
            for name, mode in result.modes.items()
            if name.rpartition(", ")[0] == model
        )
        speed = [timing.inputs_per_second for _, timing in points]
        below = [value - timing.spread[0] for value, (_, timing) in zip(speed, points, strict=True)]
        above = [timing.spread[1] - value for value, (_, timing) in zip(speed, points, strict=True)]
        active = [mode for mode, _ in points]
        colour = family_colour(model) if len(models) == 1 else None  # else one for each
        axes.errorbar(
            active, speed, [below, above], marker="o", capsize=4, color=colour, label=model
        )
    axes.set_xticks(ticks)
    axes.set_xlabel("active streams (different inputs per pass)")
    axes.set_ylabel("inputs per second")
    axes.set_ylim(bottom=0)
    axes.set_title("One set of weights, many speeds" if len(models) == 1 else "Inputs per second")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)  # never over a line
    axes.grid(alpha=0.3)
    return save_figure(figure, path)


def _one_stream(result: BenchResult) -> str | None:
    """Find the baseline that is the first model itself with one stream, if there is one."""
    kinds = {name: type(one.network) for name, one in result.candidates.items()}
    kind = kinds[next(iter(result.modes))]
    return next((base for base in result.baselines if kinds[base] is kind), None)
