"""Open and close figures in one way, with or without a screen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mimonets._extras import need


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


def save_figure(figure: Any, path: str | Path) -> Path:
    """Write a figure, making the folder if need be; returns the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
