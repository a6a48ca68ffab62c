"""Draw the report: every bound against its simulation, and the ReLU kernel."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mimonets._figure import new_figure, save_figure
from mimonets.theory import (
    relu_kernel,
    relu_kernel_approximation,
    softmax_kernel,
    superposed_relu_kernel,
)

Report = Mapping[str, Any]
FLOOR = 1e-4  # the bottom of the axes: a few thousand draws see nothing below it
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:red")
STYLES = ("-", "--", "-", "-", "-.")  # of lines that lie close to each other


def plot_bounds(report: Report, path: str | Path) -> Path:
    """Draw what ``theory_report`` gives: bounds as lines, draws as points."""
    figure = new_figure(8.4, 9.6)
    for place, panel in enumerate(report["panels"], start=1):
        _draw_panel(figure.add_subplot(3, 2, place), panel)
    figure.suptitle(
        "Bounds (lines) and what they bound, simulated (points, 2 standard errors)", fontsize=10
    )
    return save_figure(figure, path)


def plot_relu_kernel(report: Report, path: str | Path) -> Path:
    """Draw the kernel of ReLU features: the paper's figure, and what superposition makes of it."""
    figure = new_figure(10.6, 4.4)
    left, right = figure.subplots(1, 2)
    cosines = [step / 100 for step in range(-100, 101)]
    for kernel, colour, style, label in (
        (relu_kernel, "tab:red", "-", "closed form"),
        (relu_kernel_approximation, "tab:blue", "-", r"$(\rho + 1)^{\log_2 \pi} / 2\pi$"),
        (softmax_kernel, "tab:green", "--", r"softmax, $e^{\rho - 1} / 2$"),
    ):
        above = 3 if kernel is relu_kernel else 2
        values = list(map(kernel, cosines))
        left.plot(cosines, values, style, color=colour, label=label, zorder=above)
    _kernel_points(left, report["kernels"]["1x1"], "black", "simulated")
    left.set_ylabel(r"$E[\mathrm{ReLU}(w^T x)\,\mathrm{ReLU}(w^T y)]\;/\;\|x\| \|y\|$")
    left.set_title("The kernel of ReLU features")
    for side, colour in ((1, "tab:red"), (2, "tab:purple"), (4, "tab:brown")):
        values = [superposed_relu_kernel(rho, (side, side)) for rho in cosines]
        label = f"{side}x{side} streams" if side > 1 else "one stream"
        right.plot(cosines, [value / values[-1] for value in values], color=colour, label=label)
        points = report["kernels"][f"{side}x{side}"] if side > 1 else []
        _kernel_points(right, points, colour, None, values[-1])
    right.set_ylabel("kernel, relative to an aligned pair")
    right.set_title("The same in superposition (points: simulated, D = 64)")
    right.set_ylim(bottom=0)
    for axes, place in ((left, "upper left"), (right, "lower right")):
        axes.set_xlabel(r"cosine $\rho$ of query and key")
        axes.set_xlim(-1.03, 1.03)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, loc=place)
    return save_figure(figure, path)


def _kernel_points(
    axes: Any, points: Sequence[Report], colour: str, label: str | None, unit: float = 1.0
) -> None:
    axes.errorbar(
        [point["cosine"] for point in points],
        [point["mean"] / unit for point in points],
        yerr=[2 * point["standard_error"] / unit for point in points],
        fmt="o",
        markersize=4,
        color=colour,
        label=label,
        zorder=4,
    )


def _draw_panel(axes: Any, panel: Report) -> None:
    """Draw lines, and points in their colours if there is one for each of them."""
    lines, points = panel["lines"], panel["points"]
    shades = COLOURS if len(lines) > 1 else ("black",)
    for (name, values), colour, style in zip(lines.items(), shades, STYLES, strict=False):
        axes.plot(panel["at"], values, color=colour, linestyle=style, label=name)
    shades = COLOURS if len(points) > 1 else ("black",)
    for (name, found), colour, marker in zip(points.items(), shades, "os^", strict=False):
        _points(axes, panel["at"], found, colour, name, marker)
    if panel["x"] == "width D":
        axes.set_xscale("log", base=2)
        axes.set_xticks(panel["at"], [str(width) for width in panel["at"]])
    axes.set_xlabel(panel["x"])
    axes.set_title(panel["title"], fontsize=10)
    axes.set_yscale("log")
    axes.set_ylim(FLOOR, 3)
    axes.set_ylabel("probability")
    axes.axhspan(1, 3, color="gray", alpha=0.15, linewidth=0)
    place = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
    axes.text(0.985, 1.75, "above 1: says nothing", fontsize=7, color="dimgray", **place)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)


def _points(
    axes: Any, at: Sequence[float], found: Sequence[Report], colour: str, label: str, marker: str
) -> None:
    """Draw what was seen at least once."""
    seen = [(x, point) for x, point in zip(at, found, strict=True) if point["mean"] > 0]
    mean = [point["mean"] for _, point in seen]
    error = [2 * point["standard_error"] for _, point in seen]
    below = [max(min(e, m - FLOOR / 10), 0.0) for e, m in zip(error, mean, strict=True)]
    look = {"fmt": marker, "markersize": 4, "color": colour, "label": label}
    axes.errorbar([x for x, _ in seen], mean, yerr=[below, error], **look)
