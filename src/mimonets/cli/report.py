"""The tables that bench and evaluate show."""

from collections.abc import Sequence
from statistics import median
from typing import Any

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
