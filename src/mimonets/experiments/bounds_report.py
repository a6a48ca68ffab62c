"""The paper's theorems: printed values found again, and every bound beside a simulation."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from mimonets import theory
from mimonets.experiments import bounds_simulation as simulation
from mimonets.experiments.bounds_simulation import Draws, Estimate, unit_streams
from mimonets.experiments.experiment import Record, RunOptions
from mimonets.experiments.plan import printed
from mimonets.experiments.verdict import Row
from mimonets.theory.interference import PAPER_BOUNDS
from mimonets.vsa import bipolar_keys, gaussian_keys

ALPHA = 0.5  # off by half
WIDTHS = (8, 16, 32, 64, 128, 256, 512, 1024)
GRIDS = ((2, 2), (4, 4))


@dataclass
class Panel:
    """One plot: bounds as lines over a setting, and what simulation finds, as points."""

    title: str
    x: str  # what ``at`` is
    at: Sequence[float]
    lines: dict[str, list[float]] = field(default_factory=dict)
    points: dict[str, list[Estimate]] = field(default_factory=dict)


@dataclass
class _Report:
    """What the steps fill in, and what they draw with."""

    draws: Draws
    rows: list[dict[str, Any]] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)
    kernels: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def row(
        self,
        name: str,
        source: str,
        setting: str,
        value: float,
        found: Estimate,
        kind: str = "bound",
    ) -> None:
        row = {"name": name, "source": source, "setting": setting, "kind": kind, "value": value}
        self.rows.append({**row, "simulated": asdict(found)})

    def panel(self, *about: Any) -> Panel:
        self.panels.append(Panel(*about))
        return self.panels[-1]


def theory_report(
    seed: int = 0, samples: int = 5_000, advance: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Evaluate and simulate every bound; the same seed and samples give the same numbers.

    Args:
        seed: Of all that is drawn.
        samples: Draws per simulated number; those that cost more take a fifth or a tenth of it.
        advance: Called after each of the :data:`STEPS` steps.

    Returns:
        ``rows``, one per formula and setting; ``panels`` and ``kernels``, what
        :mod:`mimonets.experiments.bounds_plots` draws.
    """
    if samples < 10:
        raise ValueError(f"samples={samples} are too few to count with: draw at least 10.")
    report = _Report(Draws(samples))
    for number, step in enumerate(STEPS):
        # A generator per step: adding one leaves the numbers of the others as they are.
        generator = torch.Generator().manual_seed(1000 * seed + number)
        report.draws = Draws(samples, generator)
        step(report)
        advance()
    found = {"seed": seed, "samples": samples, "rows": report.rows, "kernels": report.kernels}
    return {**found, "panels": [asdict(panel) for panel in report.panels]}


def _keys(report: _Report) -> None:
    widths = WIDTHS[:-2]
    panel = report.panel("Two keys within 70° (A.2)", "width D", widths)
    bounds = panel.lines[r"bound $2 e^{-D\alpha^2/2}$"] = list(
        map(theory.interference_bound, widths)
    )
    panel.lines["exact, bipolar"] = list(map(theory.interference_probability, widths))
    for kind, make in (("bipolar", bipolar_keys), ("Gaussian", gaussian_keys)):
        found = [simulation.simulate_interference(report.draws, dim, keys=make) for dim in widths]
        panel.points[f"{kind} keys"] = found
        for dim, bound, one in zip(widths, bounds, found, strict=True):
            if dim in (16, 64):
                setting = f"two {kind} keys, D={dim}, 70°"
                report.row("blessing of dimensionality", "A.2", setting, bound, one)
    several = simulation.simulate_interference(report.draws, 128, num_streams=9)
    setting = "any two of 9 bipolar keys, D=128, 70°"
    report.row("all pairs of keys", "ours", setting, theory.any_pair_bound(128, 9), several)


def _sums(report: _Report) -> None:
    limits, thresholds = [1.0] * 64, [4.0 * step for step in range(8)]
    panel = report.panel("A sum beyond t (Hoeffding, G)", "threshold t", thresholds)
    bounds = [theory.hoeffding_bound(t, limits) for t in thresholds]
    found = [simulation.simulate_sum(report.draws, t, limits) for t in thresholds]
    panel.lines[r"bound $2 e^{-t^2 / 2n}$"], panel.points["64 fair signs"] = bounds, found
    report.row("Hoeffding", "G", "sum of 64 signs beyond 16", bounds[4], found[4])


def _norms(report: _Report) -> None:
    name, setting = "norm of a Hadamard product", "mean square, unit vectors, D=64"
    mean = simulation.simulate_hadamard_norm(report.draws, 64)
    report.row(name, "G", setting, theory.hadamard_norm_mean(64), mean, "closed form")
    betas = [step / 10 for step in range(6)]
    bounds = [theory.hadamard_norm_tail(beta) for beta in betas]
    x = r"excess $\beta$ over the mean $1/D$"
    panel = report.panel("Norm of a Hadamard product (G)", x, betas)
    panel.lines[r"bound $1 / (1 + \beta)$"] = bounds
    for dim in (16, 64, 256):
        found = [simulation.simulate_hadamard_norm(report.draws, dim, beta) for beta in betas]
        panel.points[f"D={dim}"] = found
        if dim == 64:
            setting = "more than 1.5 times its mean, D=64"
            report.row(name, "G", setting, bounds[-1], found[-1])


def _cleanup(report: _Report) -> None:
    widths = WIDTHS[:-1]
    panel = report.panel("Dictionary cleanup off by half (A.3)", "width D", widths)
    for streams in (2, 4, 8):
        bounds = panel.lines[f"bound, N={streams}"] = []
        points = panel.points[f"N={streams}"] = []
        for dim in widths:
            generator = report.draws.generator
            values = bipolar_keys(streams, dim, generator=generator, dtype=torch.float64)
            case = (values, values[0], 0, ALPHA)
            bounds.append(theory.cleanup_noise_bound(*case))
            points.append(simulation.simulate_cleanup_noise(report.draws, *case))
            if streams == 4 and dim in (64, 128):
                setting = f"bipolar values, D={dim}, N=4, α=0.5"
                report.row("dictionary cleanup noise", "A.3", setting, bounds[-1], points[-1])
    fewer = replace(report.draws, samples=report.draws.samples // 10)  # one costs more
    found = simulation.simulate_wrong_item(fewer, 64, 4, 10)
    setting = "10 bipolar entries, D=64, N=4"
    report.row("wrong entry", "ours", setting, theory.wrong_item_bound(64, 4, 10), found)


def _attention(report: _Report) -> None:
    for grid in GRIDS:
        name = f"{grid[0]}x{grid[1]}"
        title = f"FAVOR+S score off by half, {name} streams (D)"
        panel = report.panel(title, "width D", WIDTHS)
        for dim in WIDTHS:
            case = (*unit_streams(report.draws, dim, grid, 0.9), (0, 0), ALPHA)
            table = theory.crosstalk(*case)
            bounds = {title: bound(table) for title, bound in PAPER_BOUNDS.items()}
            bounds["Bernstein (ours)"] = theory.bernstein(table, theory.crosstalk_peak(*case))
            found = simulation.simulate_crosstalk(report.draws, *case)
            panel.points.setdefault("simulated", []).append(found)
            for title, value in bounds.items():
                panel.lines.setdefault(title, []).append(value)
                if (grid, dim) in (((2, 2), 64), ((2, 2), 512), ((4, 4), 512)):
                    source = "ours" if "ours" in title else "D"
                    setting = f"{name}, D={dim}, cos 0.9, α=0.5"
                    full = f"FAVOR+S, {title.removesuffix(' (ours)')}"
                    report.row(full, source, setting, value, found)


def _kernel(report: _Report) -> None:
    draws, points = report.draws, report.kernels.setdefault("1x1", [])
    more, fewer = (replace(draws, samples=n) for n in (10 * draws.samples, draws.samples // 5))
    for step in range(-10, 11):
        cosine = step / 10
        found = simulation.simulate_relu_kernel(more, cosine)
        points.append({"cosine": cosine, **asdict(found)})
        if cosine in (0.0, 0.5):
            for kind, kernel in (
                ("closed form", theory.relu_kernel),
                ("approximation", theory.relu_kernel_approximation),
            ):
                setting = f"unit vectors, cosine {cosine:g}"
                report.row(f"ReLU kernel, {kind}", "C.2", setting, kernel(cosine), found, kind)
    for grid in GRIDS:
        name = f"{grid[0]}x{grid[1]}"
        points = report.kernels[name] = []
        for step in range(-10, 11, 2):
            cosine = step / 10
            found = simulation.simulate_superposed_relu_kernel(fewer, cosine, grid, 64)
            points.append({"cosine": cosine, **asdict(found)})
            if cosine in (0.0, 1.0):
                title, setting = "ReLU kernel in superposition", f"{name}, D=64, cosine {cosine:g}"
                value = theory.superposed_relu_kernel(cosine, grid)
                report.row(title, "ours", setting, value, found, "approximation")


STEPS = (_keys, _sums, _norms, _cleanup, _attention, _kernel)


def measure_bounds(options: RunOptions) -> tuple[list[Row], Record]:
    """Evaluate every bound and simulate what it bounds."""
    return compare_bounds(theory_report())


def compare_bounds(report: dict[str, Any]) -> tuple[list[Row], Record]:
    """Put simulations beside bounds, and printed values beside ours."""
    values = printed()["keys_within_70_degrees"]
    ours = [
        Row(
            f"bound on two keys within 70 degrees, D={dim}",
            "probability",
            theory.interference_bound(dim),
            value,
            tolerance=half,
        )
        for dim, (value, half) in values.items()
    ]
    formulas = (row for row in report["rows"] if "kernel" not in row["name"])
    return [*ours, *_beside_simulation(formulas)], {"report": report}


def measure_relu_kernel(options: RunOptions) -> tuple[list[Row], Record]:
    """Compare the kernel of ReLU features with its closed form and the paper's approximation."""
    report = theory_report()
    rows = [row for row in report["rows"] if "kernel" in row["name"]]
    kept = {name: report[name] for name in ("seed", "samples", "kernels")} | {"rows": rows}
    return list(_beside_simulation(rows)), {"report": kept}


def _beside_simulation(formulas: Iterable[Mapping[str, Any]]) -> Iterable[Row]:
    """Put what simulation finds beside each formula: below a bound, equal to a closed form."""
    for formula in formulas:
        simulated, value = formula["simulated"], formula["value"]
        noise = 4 * simulated["standard_error"]
        what = f"{formula['name']}: {formula['setting']}"
        note = "the formula is ours" if formula["source"] == "ours" else ""
        if formula["kind"] == "bound":
            vacuous = "above 1, it says nothing" if value > 1 else note
            unit = "probability"
            yield Row(what, unit, simulated["mean"], at_most=value, tolerance=noise, note=vacuous)
        else:
            error = printed()["kernel_error"] if formula["kind"] == "approximation" else 0.0
            yield Row(what, "mean", simulated["mean"], value, tolerance=noise + error, note=note)
