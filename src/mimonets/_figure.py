"""Open and close figures in one way, with or without a screen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mimonets._extras import need

# One colour per thing in every figure: the first family with a word of a label decides.
FAMILIES = {
    "DataMUX": ("tab:cyan", ("DataMUX",)),
    "tied lanes": ("tab:olive", ("tied",)),
    "slimmable network": ("tab:purple", ("slimmable",)),
    "switchable resolution": ("tab:pink", ("switchable",)),
    "late tiles": ("#11734b", ("late tiles",)),
    "tiles": ("#69c08a", ("tiles",)),
    "keys, wider trunk": ("tab:brown", ("wider",)),
    "keys, the paper's recipe": ("#c0302b", ("the paper's",)),
    "keys": ("#ef8a1d", ("keys", "slots", "MIMO", "N=", "(ours)")),
    "plain network, fewer pixels or maps": ("#9fb3d1", ("half resolution", "thin")),
    "plain network": ("#34558b", ("Net", "plain", "big", "Performer", "Transformer")),
}
# Rules of serving, the first that a label contains: fixed points get darker with the streams.
RULES = {
    "LitServe": "tab:brown",
    "Ray Serve": "tab:pink",
    "superpose what waits": "tab:green",
    "deadline fit": "tab:purple",
    "big/small": "#ef8a1d",
    "1 active": "#8cc5e8",
    "2 active": "#4f9fd0",
    "3 active": "#2878b5",
    "4 active": "#08408a",
    "by load": "black",
}


def family_of(label: str) -> str:
    """Say which family a label belongs to; none: an empty string.

    >>> family_of("late tiles N=4, distilled"), family_of("WideResNet-10-1"), family_of("ListOps")
    ('late tiles', 'plain network', '')
    """
    found = (name for name, (_, words) in FAMILIES.items() if any(word in label for word in words))
    return next(found, "")


def family_colour(label: str) -> str:
    """Give the colour of the family of a label; grey without one."""
    return FAMILIES[family_of(label)][0] if family_of(label) else "tab:gray"


def rule_colour(label: str) -> str:
    """Give the colour of a rule of serving.

    >>> rule_colour("always 4 active")
    '#08408a'
    """
    return next((colour for name, colour in RULES.items() if name in label), "0.5")


def need_matplotlib() -> Any:
    """Import matplotlib's figures, or say how to install it."""
    return need("matplotlib.figure", "matplotlib", extra="plot", what="A plot")


def new_figure(width: float = 6.4, height: float = 4.2) -> Any:
    """Make an empty figure; raises ValueError if matplotlib is missing."""
    return need_matplotlib().Figure(figsize=(width, height), layout="constrained")


def new_axes(width: float = 6.4, height: float = 4.2) -> tuple[Any, Any]:
    """Make a figure with one pair of axes."""
    figure = new_figure(width, height)
    return figure, figure.add_subplot()


def legend_below(figure: Any, handles: Sequence[Any]) -> None:
    """Name the handles below all axes, in as many columns, four at most, as the width holds."""
    for columns in (4, 3, 2, 1):
        legend = figure.legend(
            handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8
        )
        figure.draw_without_rendering()
        if legend.get_window_extent().width <= figure.bbox.width or columns == 1:
            return
        legend.remove()


def log_percent(axes: Any, low: float) -> None:
    """Make an axis of percentages logarithmic; what is below ``low``, zero too, stands at it."""
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if tick >= low]
    axes.set_yscale("log")
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.set_ylim(0.9 * low, 110)


def points_around_zero(axes: Any) -> None:
    """Spread small differences: linear up to one point, logarithmic beyond, a line at zero."""
    ticks = [-50, -20, -5, -2, -1, -0.5, 0, 0.5, 1, 2, 5]
    axes.set_yscale("symlog", linthresh=1.0, linscale=1.5)
    axes.set_yticks(ticks, [f"{tick:+g}" if tick else "0" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.axhline(0, color="0.3", linewidth=0.8)


def error_scale(axes: Any, accuracies: Sequence[float]) -> None:
    """Spread accuracies near 100 %: the axis is logarithmic in the errors, labelled in accuracy."""
    if max(accuracies, default=0) < 98.5:
        return

    def log_of_errors(accuracy: Any) -> Any:
        from numpy import log10, maximum

        return -log10(maximum(100.05 - accuracy, 1e-3))

    axes.set_yscale("function", functions=(log_of_errors, lambda y: 100.05 - 10.0**-y))
    low = min(accuracies)
    ticks = [50, 60, 70, 80, 90, 95, 97, 98, 98.5, 99, 99.2, 99.4, 99.6, 99.8]
    shown = [tick for tick in ticks if low - 0.12 * (100 - low) <= tick]
    axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axes.set_yticks([], minor=True)
    axes.set_ylim(low - 0.15 * (100 - low), 100 - 0.7 * (100 - max(accuracies)))


def save_figure(figure: Any, path: str | Path) -> Path:
    """Write a figure, making the folder if need be; returns the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
