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


def plot_bounds(report: Report, path: str | Path) -> Path:
    """Draw what ``theory_report`` gives: bounds as lines, draws as points."""
    figure = new_figure(8.4, 9.6)
    panels = figure.subplots(3, 2)
    curves = report["curves"]
    _keys(panels[0, 0], curves["keys"])
    _sums(panels[0, 1], curves["sums"])
    _norms(panels[1, 0], curves["norms"])
    _cleanup(panels[1, 1], curves["cleanup"])
    for axes, grid in zip(panels[2], ("2x2", "4x4"), strict=True):
        _attention(axes, curves[f"attention {grid}"], grid)
    for axes in panels.flat:
        axes.grid(alpha=0.25)
        axes.set_ylabel("probability")
        axes.title.set_fontsize(10)
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
    _kernel_points(left, report["curves"]["kernel"], "black", "simulated")
    left.set_ylabel(r"$E[\mathrm{ReLU}(w^T x)\,\mathrm{ReLU}(w^T y)]\;/\;\|x\| \|y\|$")
    left.set_title("The kernel of ReLU features")
    for side, colour in ((1, "tab:red"), (2, "tab:purple"), (4, "tab:brown")):
        values = [superposed_relu_kernel(rho, (side, side)) for rho in cosines]
        label = f"{side}x{side} streams" if side > 1 else "one stream"
        right.plot(cosines, [value / values[-1] for value in values], color=colour, label=label)
        points = report["curves"].get(f"kernel {side}x{side}", [])
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


def _keys(axes: Any, curve: Report) -> None:
    axes.plot(curve["dim"], curve["bound"], color=COLOURS[0], label=r"bound $2 e^{-D\alpha^2/2}$")
    axes.plot(curve["dim"], curve["exact"], color="gray", linestyle=":", label="exact, bipolar")
    _points(axes, curve["dim"], curve["bipolar"], COLOURS[0], "bipolar keys")
    _points(axes, curve["dim"], curve["Gaussian"], COLOURS[1], "Gaussian keys", marker="s")
    for dim in (16, 64):  # the two figures that the paper gives
        bound = curve["bound"][curve["dim"].index(dim)]
        axes.plot(dim, bound, "D", color=COLOURS[0], markersize=5)
        axes.annotate(f"{bound:.3g}", (dim, bound), xytext=(5, 3), textcoords="offset points")
    _widths(axes, curve["dim"], "Two keys within 70° (A.2)")


def _sums(axes: Any, curve: Report) -> None:
    axes.plot(curve["t"], curve["bound"], color=COLOURS[0], label=r"bound $2 e^{-t^2 / 2n}$")
    _points(axes, curve["t"], curve["simulated"], COLOURS[0], "64 fair signs")
    _probabilities(axes, "threshold t", "A sum beyond t (Hoeffding, G)")


def _norms(axes: Any, curve: Report) -> None:
    axes.plot(curve["beta"], curve["bound"], color="black", label=r"bound $1 / (1 + \beta)$")
    names = [name for name in curve if name.startswith("D=")]
    for name, colour in zip(names, COLOURS, strict=False):
        _points(axes, curve["beta"], curve[name], colour, name)
    _probabilities(axes, r"excess $\beta$ over the mean $1/D$", "Norm of a Hadamard product (G)")


def _cleanup(axes: Any, curve: Report) -> None:
    names = [name for name in curve if name.startswith("N=")]
    for name, colour in zip(names, COLOURS, strict=False):
        axes.plot(curve["dim"], curve[name]["bound"], color=colour, label=f"bound, {name}")
        _points(axes, curve["dim"], curve[name]["simulated"], colour, None)
    _widths(axes, curve["dim"], "Dictionary cleanup off by half (A.3)", legend="upper right")


def _attention(axes: Any, curve: Report, grid: str) -> None:
    styles = ("-", "--", "-", "-", "-.")
    bounds = dict(curve["bounds"])
    # On a square grid the two of Markov are close to each other; dashes show both.
    for (name, values), colour, style in zip(bounds.items(), COLOURS, styles, strict=True):
        axes.plot(curve["dim"], values, color=colour, linestyle=style, label=name)
    _points(axes, curve["dim"], curve["simulated"], "black", "simulated")
    _widths(axes, curve["dim"], f"FAVOR+S score off by half, {grid} streams (D)")


def _points(
    axes: Any,
    where: Sequence[float],
    found: Sequence[Report],
    colour: str,
    label: str | None,
    marker: str = "o",
) -> None:
    """Draw what was seen at least once."""
    seen = [(x, point) for x, point in zip(where, found, strict=True) if point["mean"] > 0]
    mean = [point["mean"] for _, point in seen]
    error = [2 * point["standard_error"] for _, point in seen]
    below = [min(e, m - FLOOR / 10) for e, m in zip(error, mean, strict=True)]
    axes.errorbar(
        [x for x, _ in seen],
        mean,
        yerr=[[max(b, 0.0) for b in below], error],
        fmt=marker,
        markersize=4,
        color=colour,
        label=label,
    )


def _widths(axes: Any, widths: Sequence[int], title: str, legend: str = "lower left") -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [str(width) for width in widths])
    _probabilities(axes, "width D", title, legend)


def _probabilities(axes: Any, label: str, title: str, legend: str = "lower left") -> None:
    axes.set_xlabel(label)
    axes.set_title(title)
    axes.set_yscale("log")
    axes.set_ylim(FLOOR, 3)
    axes.axhspan(1, 3, color="gray", alpha=0.15, linewidth=0)
    place = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
    axes.text(0.985, 1.75, "above 1: says nothing", fontsize=7, color="dimgray", **place)
    anchor = (1.0, 0.9) if legend.startswith("upper") else None  # below the gray
    axes.legend(frameon=False, fontsize=8, loc=legend, bbox_to_anchor=anchor)
