"""What a network computes per input, ours beside the paper's; what the runs of a plan need."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mimonets.evaluation import count_macs
from mimonets.experiments.experiment import Record, RunOptions
from mimonets.experiments.plan import Plan, printed
from mimonets.experiments.verdict import Row
from mimonets.recipes import load_recipe
from mimonets.recipes.needs import needs_of, show_hours


def measure_mimoconv(options: RunOptions) -> tuple[list[Row], Record]:
    """Count MMAC per input of the image networks."""
    return _compare("mimoconv", "MMAC", 1e6)


def measure_mimoformer(options: RunOptions) -> tuple[list[Row], Record]:
    """Count GMAC per input of the sequence networks on Text."""
    return _compare("mimoformer", "GMAC", 1e9)


def _compare(table: str, unit: str, size: float) -> tuple[list[Row], Record]:
    """Put our counts beside the printed ones, with all streams of a network busy."""
    notes = {row: note for note, rows in printed()["notes"].items() for row in rows}
    rows, counts = [], {}
    for recipe, parts in printed()[table].items():
        cost = count_macs(printed_network(load_recipe(recipe).model))
        parts_counted = {part.name: part.paper for part in cost.parts}
        counted = {**parts_counted, "total": cost.paper, "plain total": cost.plain}
        counts[recipe] = counted
        for part, text in parts.items():
            rows.append(
                Row(
                    f"{recipe}: {part}",
                    unit,
                    ours=counted[part] / size,
                    paper=float(text),
                    tolerance=_tolerance(text),
                    note=notes.get(f"{recipe}: {part}", ""),
                )
            )
    return rows, {"macs_per_input": counts}


def printed_network(config: Any) -> Any:
    """Give the variant that the printed counts fit.

    It has no batch norm on the shortcuts, and one before the pooling of the single-input networks.
    The recipes train the authors' published network, which the printed accuracies come from.
    """
    if not hasattr(config, "shortcut_norm"):
        return config
    takes_several = hasattr(config, "num_streams")
    return replace(config, shortcut_norm=False, final_norm=not takes_several)


def plan_needs(plan: Plan, *, count: bool = True) -> list[dict[str, Any]]:
    """Estimate what each row of a plan needs: runs, A100-hours of a run, bytes at the peak.

    With ``count=False`` rows that are not in the table of :mod:`mimonets.recipes.needs` are left
    out; else they are counted, which takes some seconds each.
    """
    rows = []
    for trial in plan.trials:
        if trial.removed:
            continue
        recipe = trial.load(0)
        needs = needs_of(recipe, count=count)
        if needs is not None:
            precision = recipe.train.precision
            rows.append(
                {
                    "what": trial.title,
                    "runs": len(trial.seeds),
                    "precision": precision,
                    "hours": needs.hours(precision),
                    "peak": needs.peak[precision],
                }
            )
    return rows


def total_needs(rows: Sequence[Mapping[str, Any]]) -> str:
    """Sum up the needs of a plan in a few words."""
    runs = sum(row["runs"] for row in rows)
    hours = sum(row["runs"] * (row["hours"] or 0) for row in rows)
    peak = max(row["peak"] for row in rows)
    time = f"about {show_hours(hours)}" if hours >= 0.01 else "minutes"
    return f"{runs} runs, {time} of one A100 in all, up to {peak / 1e9:.2g} GB, by estimate"


def _tolerance(text: str) -> float:
    """Say how far a count may be from the printed one: a unit of its last digit, or 0.5 %.

    >>> _tolerance("1.97"), _tolerance("5251")
    (0.01, 26.255)
    """
    decimals = len(text.partition(".")[2])
    return max(10.0**-decimals, 0.005 * float(text))
