"""Draw what an experiment measured, beside what the paper reports."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from mimonets._figure import (
    FAMILIES,
    error_scale,
    family_colour,
    family_of,
    legend_below,
    new_axes,
    new_figure,
    save_figure,
)
from mimonets._seeds import mean_and_deviation
from mimonets.experiments.experiment import Record
from mimonets.experiments.plan import Average

AXES = {"streams": ("inputs per pass", 1), "macs": ("MMAC per input", 1e6)}  # and their units
PAPER_STYLE = {"linestyle": "none", "marker": "x", "color": "black", "zorder": 3}
ONE_SEED = {"linestyle": "none", "marker": "o", "color": "0.3", "markerfacecolor": "white"}


def draw_curves(record: Record, path: Path, x: str) -> Path:
    """Draw accuracy against what an answer costs, one line per group, on a logarithmic scale.

    Rows of several variants, such as lengths of training, get a panel for each (rows without one
    are then left out). A legend names the groups, of which "a + b" has the colour of "a". In a
    single panel against MACs a number beside a point says how many inputs share a pass. Accuracies
    near 100 % are spread by a logarithmic scale of errors.
    """
    label, unit = AXES[x]
    rows = [row for row in record["rows"] if x in row and row["unit"] == "%"]
    variants = dict.fromkeys(row["variant"] for row in rows if row.get("variant")) or {"": None}
    rows = [row for row in rows if row.get("variant", "") in variants]
    figure = new_figure(max(7.6, 2.0 + 2.9 * len(variants)), 4.4)
    colours = _colours(rows)
    numbered = x == "macs" and "" in variants
    for place, variant in enumerate(variants, start=1):
        axes = figure.add_subplot(1, len(variants), place)
        some = [row for row in rows if row.get("variant", "") == variant]
        _draw_groups(axes, some, x, unit, colours)
        error_scale(axes, _accuracies(some))
        if numbered:
            _number_points(axes, some, x, unit)
        _scale(axes, [row[x] / unit for row in rows])
        _label(axes, f"{label} (beside points: inputs per pass)" if numbered else label)
        axes.set_title(variant, fontsize=9)
        axes.tick_params(labelsize=8)
    handles = _handles(axes, colours, _markers(colours))
    if any(row.get("seeds") == 1 and "ours" in row for row in rows):
        handles += axes.plot([], [], **ONE_SEED, label="one seed")
    if any("paper" in row for row in rows):
        handles += axes.plot([], [], **PAPER_STYLE, label="the paper's value")
    legend_below(figure, handles)
    return _finish(figure, record, path)


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


def _scale(axes: Any, values: Sequence[float]) -> None:
    """Make the axis below logarithmic, with ticks at round numbers, or at few integers."""
    if not values:  # nothing has been run yet
        return
    low, high = min(values) / 1.25, max(values) * 1.25
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low > 8 else (1, 1.5, 2, 3, 4, 6, 8)
    ticks = [step * 10.0**power for power in powers for step in steps]
    if all(float(value).is_integer() for value in values):
        ticks = sorted(set(values))
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:,.10g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlim(low, high)


def _label(axes: Any, label: str) -> None:
    axes.set_xlabel(label)
    spread = " (log scale of errors)" if axes.get_yscale() == "function" else ""
    axes.set_ylabel(f"test accuracy, %{spread}")
    axes.grid(alpha=0.3)


def _accuracies(rows: Sequence[dict[str, Any]]) -> list[float]:
    return [row[key] for row in rows for key in ("ours", "paper") if key in row]


def draw_dots(record: Record, path: Path) -> Path:
    """Draw one dot per row, with its spread over the seeds, and the paper's value as a cross.

    The axis spans what was found, so that differences of a point can be seen. A rule stands between
    groups of rows.
    """
    rows = [row for row in record["rows"] if row["unit"] == "%"]
    rows = [row for row in rows if "ours" in row] or rows
    lines = [(row["what"], [row]) for row in rows]
    ends = [
        place
        for place, (row, after) in enumerate(pairwise(rows), start=1)
        if row.get("group", "") != after.get("group", "")
    ]
    return _draw_lines(lines, ends, record, path)


def draw_variants(record: Record, path: Path) -> Path:
    """Draw a line per network and a mark per variant on it, such as lengths of training.

    A rule stands between numbers of inputs per pass; rows without a variant are left out.
    """
    lines: dict[str, list[Record]] = {}
    for row in record["rows"]:
        if row.get("variant") and "ours" in row:
            name = row["what"].removesuffix(f", {row['variant']}")
            lines.setdefault(name, []).append(row)
    ordered = sorted(lines.items(), key=lambda line: -round(math.log2(line[1][0]["macs"])))
    costs = [round(math.log2(rows[0]["macs"])) for _, rows in ordered]
    ends = [place for place, (one, two) in enumerate(pairwise(costs), start=1) if one != two]
    named = [(f"{name} ({rows[0]['macs'] / 1e6:.0f} MMAC)", rows) for name, rows in ordered]
    return _draw_lines(named, ends, record, path)


def draw_averages(averages: Sequence[Average], record: Record, path: Path) -> Path:
    """Draw an average with its spread over the seeds, and the trials it is over as small marks."""
    rows = [row for row in record["rows"] if "ours" in row]
    lines = []
    for one in averages:
        mean = [row for row in rows if row["what"] == one.title]
        parts = [row for row in rows if fnmatchcase(row["what"], f"{one.over}*")]
        small = [{**row, "is_part": True} for row in parts if row not in mean]
        if mean:
            lines.append((one.title, [*small, *mean]))
    return _draw_lines(lines, [], record, path)


def _draw_lines(
    lines: Sequence[tuple[str, Sequence[Record]]], ends: Sequence[int], record: Record, path: Path
) -> Path:
    """Draw named lines of dots, in the colour of their family, with a legend of every mark."""
    figure, axes = new_axes(width=7.6, height=1.5 + 0.26 * len(lines))
    rows = [row for _, some in lines for row in some]
    variants = dict.fromkeys(row.get("variant", "") for row in rows)
    markers = dict(zip(variants, "osD^v", strict=False))
    names = {family_of(name): name for name, _ in lines}
    for place, (name, some) in enumerate(lines):
        colour = family_colour(name)
        for row in some:
            look = {"color": colour, "marker": markers[row.get("variant", "")]}
            if row.get("is_part"):
                axes.plot(row["ours"], place, color=colour, marker=".", alpha=0.5)
            elif "ours" in row:
                sides = [[side] for side in _within_percent(row["ours"], row.get("deviation", 0.0))]
                hollow = {"markerfacecolor": "white"} if row.get("seeds") == 1 else {}
                axes.errorbar(row["ours"], place, xerr=sides, capsize=3, **look, **hollow)
            if "paper" in row:
                axes.plot(row["paper"], place, **PAPER_STYLE)
    for end in ends:
        axes.axhline(end - 0.5, color="0.8", linewidth=0.8)
    axes.set_yticks(range(len(lines)), [name for name, _ in lines], fontsize=8)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_xlabel("test accuracy, % (bar: standard deviation over seeds)")
    axes.grid(alpha=0.3, axis="x")
    legend_below(figure, _legend_of_lines(axes, rows, [name for name in names if name], markers))
    return _finish(figure, record, path)


def _legend_of_lines(
    axes: Any, rows: Sequence[Record], families: Sequence[str], markers: dict[str, str]
) -> list[Any]:
    """Make what a legend of lines shows: families by colour, variants by marker, the rest."""
    looks: list[tuple[dict[str, Any], str]] = [
        *(({"color": FAMILIES[one][0], "marker": "o"}, one) for one in families),
        *(({"color": "0.3", "marker": marker}, one) for one, marker in markers.items() if one),
    ]
    if any(row.get("seeds") == 1 for row in rows):
        looks.append((ONE_SEED, "one seed"))
    if any(row.get("is_part") for row in rows):
        looks.append(({"color": "0.3", "marker": ".", "alpha": 0.5}, "its parts, mean over seeds"))
    if any("paper" in row for row in rows):
        looks.append((PAPER_STYLE, "the paper's value"))
    return [
        axes.plot([], [], **{**look, "linestyle": "none"}, label=label)[0] for look, label in looks
    ]


def draw_against_epochs(record: Record, path: Path) -> Path:
    """Draw validation accuracy against epochs: the mean over seeds, and from lowest to highest."""
    figure, axes = new_axes(width=7.6, height=5.0)
    runs = [run for run in record.get("runs", []) if run.get("history")]
    lines: dict[tuple[str, str], dict[int, list[float]]] = {}
    for run in runs:
        for row in run["history"]:
            for mode, accuracy in row.get("validation", {}).items():
                line = lines.setdefault((_name_of_trial(run["trial"]), mode), {})
                line.setdefault(row["epoch"], []).append(100 * accuracy)
    several = {name for name, mode in lines if (name, mode) != (name, "1") and (name, "1") in lines}
    seeds = Counter(_name_of_trial(run["trial"]) for run in runs)
    dashes = {family: cycle(("-", "--", "-.", ":")) for family in ("", *FAMILIES)}
    for (name, mode), line in lines.items():
        label = f"{name}, {mode} active" if name in several else name
        label += f" ({seeds[name]} seed{'s' if seeds[name] > 1 else ''})"
        at, means = list(line), [fmean(found) for found in line.values()]
        colour = family_colour(name)
        axes.plot(at, means, color=colour, linestyle=next(dashes[family_of(name)]), label=label)
        low, high = ([side(found) for found in line.values()] for side in (min, max))
        axes.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    _label(axes, "epochs")
    axes.set_ylabel("validation accuracy, %")
    return _finish(figure, record, path, axes)


def _name_of_trial(trial: str) -> str:
    """Name a curve by what ran.

    >>> _name_of_trial("cifar10-regime-mimoconv-n2-ours"), _name_of_trial("cifar10-map-wideresnet")
    ('keys, N=2, ours', 'plain')
    """
    keys = "keys" if "-ours" in trial else "keys, the paper's recipe"
    for kind, family in (("mimoconv", keys), ("wideresnet", "plain")):
        _, found, rest = trial.partition(kind)
        if found:
            words = [family, *rest.replace("-", ",").strip(",").split(",")]
            return ", ".join(re.sub(r"^n(\d)", r"N=\1", word) for word in words if word)
    return trial


def draw_slopes(record: Record, path: Path) -> Path | None:
    """Draw the mean slope of parametric ReLUs against inputs per pass, and over the epochs.

    Trials whose names differ in the number of streams only form a line. Nothing is drawn without
    such a line; the epochs need runs that noted their slopes.
    """
    lines: dict[str, dict[int, list[Record]]] = {}
    for run in record.get("runs", []):
        streams = re.search(r"-n(\d+)", run["trial"])
        if streams and run.get("slopes"):
            line = lines.setdefault(run["trial"].replace(streams[0], "", 1), {})
            line.setdefault(int(streams[1]), []).append(run)
    lines = {name: line for name, line in lines.items() if len(line) > 1}
    noted = [
        (f"{name}, N={n}", [row for row in runs[0]["history"] if "slope" in row])
        for name, line in lines.items()
        for n, runs in sorted(line.items())
    ]
    noted = [(name, rows) for name, rows in noted if rows]
    if not lines:
        return None
    figure = new_figure(9.0 if noted else 6.4, 4.0)
    panels = list(figure.subplots(1, 1 + bool(noted), sharey=True, squeeze=False)[0])
    for name, line in lines.items():
        ends = {n: [fmean(run["slopes"].values()) for run in line[n]] for n in sorted(line)}
        means, spread = zip(*map(mean_and_deviation, ends.values()), strict=True)
        sides = [deviation or 0.0 for deviation in spread]
        (drawn, *_) = panels[0].errorbar([*ends], means, sides, fmt="o-", capsize=3, label=name)
        once = {n: found[0] for n, found in ends.items() if len(found) == 1}
        panels[0].plot(*_pairs(once), "o", color=drawn.get_color(), mfc="white", zorder=3)
    ticks = sorted({n for line in lines.values() for n in line})
    panels[0].set_xscale("log", base=2)
    panels[0].set_xticks(ticks, [str(tick) for tick in ticks])
    panels[0].set_xlabel("inputs per pass, at the end of training (hollow: one seed)")
    panels[0].set_ylabel("mean slope b (0: ReLU, 1: linear)")
    for name, rows in noted:
        panels[1].plot(*_pairs({row["epoch"]: row["slope"] for row in rows}), label=name)
        panels[1].set_xlabel("epochs (the first seed)")
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    return _finish(figure, {**record, "title": "Slopes of parametric ReLUs"}, path)


def _pairs(values: dict[int, float]) -> tuple[list[int], list[float]]:
    return list(values), list(values.values())


DRAWINGS: dict[str, Callable[[Record, Path], Path]] = {
    "streams": partial(draw_curves, x="streams"),
    "macs": partial(draw_curves, x="macs"),
    "trials": draw_dots,
    "variants": draw_variants,
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
    once = [row for row in rows if row.get("seeds") == 1 and "ours" in row]
    for row in once:
        look = {"color": colours[row.get("group", "")], "marker": markers[row.get("group", "")]}
        axes.plot(row[x] / unit, row["ours"], **look, markerfacecolor="white", zorder=3)
    known = {  # in the colour of the paper's own recipe, where it was run
        (row[x] / unit, row["paper"]): (
            "black" if row.get("our_recipe") else colours[row.get("group", "")]
        )
        for row in sorted(rows, key=lambda row: not row.get("our_recipe", False))
        if "paper" in row
    }
    for point, colour in known.items():
        axes.plot(*point, **{**PAPER_STYLE, "color": colour}, markersize=8, markeredgewidth=2)


def _within_percent(mean: float, deviation: float) -> tuple[float, float]:
    """Say how far an error bar reaches to either side: not below 0 %, not above 100 %.

    >>> _within_percent(98.0, 5.0)
    (5.0, 2.0)
    """
    return min(deviation, mean), min(deviation, 100 - mean)


def _colours(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Choose a colour for every group: that of its family, else one that no other group has.

    Groups "a" and "a + b" share it.
    """
    groups = dict.fromkeys(row.get("group", "") for row in rows)
    others = dict.fromkeys(group.partition(" + ")[0] for group in groups if not family_of(group))
    spare = dict(zip(others, cycle(f"C{number}" for number in range(10)), strict=False))
    return {
        group: family_colour(group) if family_of(group) else spare[group.partition(" + ")[0]]
        for group in groups
    }


def _markers(groups: Iterable[str]) -> dict[str, str]:
    """Choose a marker for every group, by what it adds to its family."""
    added = {group: group.partition(" + ")[2] for group in groups}
    markers = dict(zip(dict.fromkeys(["", *added.values()]), "oP^vs", strict=False))
    return {group: markers.get(what, "D") for group, what in added.items()}
