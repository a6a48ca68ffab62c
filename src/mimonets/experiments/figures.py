"""Draw what an experiment measured, beside what the paper reports."""

import math
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

from mimonets._figure import legend_below, new_axes, new_figure, save_figure
from mimonets.experiments.experiment import Record

PAPER_STYLE = {"linestyle": "none", "marker": "x", "color": "black", "zorder": 3}


def draw_against_streams(record: Record, path: Path) -> Path:
    """Draw accuracy against inputs per pass, one line per group."""
    figure, axes = new_axes()
    _draw_groups(axes, record["rows"], "streams", 1.0, _colours(record["rows"]))
    ticks = sorted({row["streams"] for row in record["rows"]})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    _label(axes, "inputs per pass")
    return _finish(figure, record, path, axes)


def draw_against_macs(record: Record, path: Path) -> Path:
    """Draw accuracy against multiply-accumulates per input."""
    rows = [row for row in record["rows"] if "ours" in row and row["unit"] == "%"]
    return _finish(against_cost(rows, "macs", "MMAC per input", unit=1e6), record, path)


def against_cost(rows: Sequence[dict[str, Any]], x: str, label: str, unit: float = 1.0) -> Any:
    """Draw accuracy against what an answer costs, on a logarithmic scale, one line per group.

    Rows of several variants, such as lengths of training, get a panel for each (rows without one
    are then left out). A legend names the groups, of which "a + b" has the colour of "a". In a
    single panel a number beside a point says how many inputs share a pass.
    """
    variants = dict.fromkeys(row["variant"] for row in rows if row.get("variant")) or {"": None}
    rows = [row for row in rows if row.get("variant", "") in variants]
    figure = new_figure(max(7.6, 2.0 + 2.9 * len(variants)), 4.4)
    colours = _colours(rows)
    for place, variant in enumerate(variants, start=1):
        axes = figure.add_subplot(1, len(variants), place)
        some = [row for row in rows if row.get("variant", "") == variant]
        _draw_groups(axes, some, x, unit, colours)
        if not variant:
            _number_points(axes, some, x, unit)
        if rows:  # else nothing has been run yet
            low, high = min(row[x] for row in rows), max(row[x] for row in rows)
            _scale(axes, low / 1.25, high * 1.25, unit)
        _label(axes, label if variant else f"{label} (beside points: inputs per pass)")
        axes.set_title(variant, fontsize=9)
        axes.tick_params(labelsize=8)
    handles = _handles(axes, colours, _markers(colours))
    if any("paper" in row for row in rows):
        handles += axes.plot([], [], **PAPER_STYLE, label="the paper's value")
    legend_below(figure, handles)
    return figure


def _number_points(axes: Any, rows: Sequence[dict[str, Any]], x: str, unit: float) -> None:
    """Write inputs per pass beside the points; those that lie close together share a label."""
    bottom, top = axes.get_ylim()
    places: list[list[dict[str, Any]]] = []
    for row in rows:
        if row.get("streams", 1) > 1:
            for some in places:
                is_near = abs(math.log(row[x] / some[0][x])) < 0.1
                if is_near and abs(row["ours"] - some[0]["ours"]) < 0.06 * (top - bottom):
                    some.append(row)
                    break
            else:
                places.append([row])
    for some in places:
        numbers = sorted({row["streams"] for row in some})
        right, low = max(row[x] for row in some), min(row["ours"] for row in some)
        axes.annotate(
            ", ".join(map(str, numbers)),
            (right / unit, low),
            (4, -9),
            textcoords="offset points",
            fontsize=7,
            color="dimgray",
        )


def _scale(axes: Any, low: float, high: float, unit: float) -> None:
    """Make the axis below logarithmic, with ticks at round numbers."""
    low, high = low / unit, high / unit
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low > 8 else (1, 1.5, 2, 3, 4, 6, 8)
    ticks = [step * 10.0**power for power in powers for step in steps]
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:,.10g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlim(low, high)


def _label(axes: Any, label: str) -> None:
    axes.set_xlabel(label)
    axes.set_ylabel("test accuracy, %")
    axes.grid(alpha=0.3)


def draw_dots(record: Record, path: Path) -> Path:
    """Draw one dot per row, with its spread over the seeds, and the paper's value as a cross.

    The axis spans what was found, so that differences of a point can be seen.
    """
    rows = [row for row in record["rows"] if row["unit"] == "%"]
    rows = [row for row in rows if "ours" in row] or rows
    figure, axes = new_axes(width=7.6, height=0.8 + 0.34 * len(rows))
    colours = _colours(rows)
    for place, row in enumerate(rows):
        if "ours" in row:
            colour = colours[row.get("group", "")]
            spread = _within_percent(row["ours"], row.get("deviation", 0.0))
            sides = [[side] for side in spread]
            axes.errorbar(row["ours"], place, xerr=sides, fmt="o", color=colour, capsize=3)
        if "paper" in row:
            axes.plot(row["paper"], place, **PAPER_STYLE)
    axes.set_yticks(range(len(rows)), [row["what"] for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    crosses = " (cross: the paper's)" if any("paper" in row for row in rows) else ""
    axes.set_xlabel(f"test accuracy, %{crosses}")
    axes.grid(alpha=0.3)
    return _finish(figure, record, path)


def draw_against_epochs(record: Record, path: Path) -> Path:
    """Draw validation accuracy against epochs, a line per trial and mode: the mean over seeds."""
    figure, axes = new_axes(width=7.6, height=5.0)
    runs = [run for run in record.get("runs", []) if run.get("history")]
    names = {run["trial"] for run in runs}
    letters = zip(*names, strict=False) if len(names) > 1 else ()
    beginning = "".join(same[0] for same in takewhile(lambda one: len(set(one)) == 1, letters))
    beginning = beginning[: beginning.rfind("-") + 1]
    lines: dict[tuple[str, str], dict[int, list[float]]] = {}
    for run in runs:
        for row in run["history"]:
            for mode, accuracy in row.get("validation", {}).items():
                line = lines.setdefault((run["trial"].removeprefix(beginning), mode), {})
                line.setdefault(row["epoch"], []).append(100 * accuracy)
    several = {name for name, mode in lines if (name, mode) != (name, "1") and (name, "1") in lines}
    for (name, mode), line in lines.items():
        label = f"{name}, {mode} active" if name in several else name
        axes.plot(list(line), [fmean(found) for found in line.values()], label=label)
    _label(axes, "epochs")
    axes.set_ylabel("validation accuracy, %")
    return _finish(figure, record, path, axes)


DRAWINGS = {
    "streams": draw_against_streams,
    "macs": draw_against_macs,
    "trials": draw_dots,
    "epochs": draw_against_epochs,
}


def _finish(figure: Any, record: Record, path: Path, axes: Any = None) -> Path:
    """Write the title over the whole figure, a legend into the axes if they need one, and save."""
    figure.suptitle(record["title"], fontsize=10)
    if axes is not None and axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    return save_figure(figure, path)


def _handles(axes: Any, colours: dict[str, str], markers: dict[str, str]) -> list[Any]:
    """Make what a legend shows of every group."""
    return [
        axes.plot([], [], color=colour, marker=markers[group], label=group)[0]
        for group, colour in colours.items()
    ]


def _draw_groups(
    axes: Any, rows: Sequence[dict[str, Any]], x: str, unit: float, colours: dict[str, str]
) -> None:
    """Draw ours as a line per group with error bars, the paper's as crosses."""
    markers = _markers(colours)
    for group in dict.fromkeys(row.get("group", "") for row in rows):
        points = sorted(
            (row[x] / unit, row["ours"], row.get("deviation", 0.0))
            for row in rows
            if row.get("group", "") == group and "ours" in row
        )
        if points:
            at, mean, spread = zip(*points, strict=True)
            sides = zip(*map(_within_percent, mean, spread), strict=True)
            style = {"color": colours[group], "marker": markers[group], "capsize": 3}
            axes.errorbar(at, mean, yerr=list(sides), **style, label=group)
    known = {  # in the colour of the paper's own recipe, where it was run
        (row[x] / unit, row["paper"]): (
            "black" if row.get("our_recipe") else colours[row.get("group", "")]
        )
        for row in sorted(rows, key=lambda row: not row.get("our_recipe", False))
        if "paper" in row
    }
    for point, colour in known.items():
        axes.plot(*point, **{**PAPER_STYLE, "color": colour}, markersize=8, markeredgewidth=2)
    if known:
        axes.plot([], [], **PAPER_STYLE, label="the paper's value")


def _within_percent(mean: float, deviation: float) -> tuple[float, float]:
    """Say how far an error bar reaches to either side: not below 0 %, not above 100 %.

    >>> _within_percent(98.0, 5.0)
    (5.0, 2.0)
    """
    return min(deviation, mean), min(deviation, 100 - mean)


def _colours(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Choose a colour for every group; "a" and "a + b" are of one family and share it."""
    groups = dict.fromkeys(row.get("group", "") for row in rows)
    families = list(dict.fromkeys(group.partition(" + ")[0] for group in groups))
    return {group: f"C{families.index(group.partition(' + ')[0])}" for group in groups}


def _markers(groups: Iterable[str]) -> dict[str, str]:
    """Choose a marker for every group, by what it adds to its family."""
    added = {group: group.partition(" + ")[2] for group in groups}
    markers = dict(zip(dict.fromkeys(["", *added.values()]), "oPx^v", strict=False))
    return {group: markers.get(what, "D") for group, what in added.items()}
