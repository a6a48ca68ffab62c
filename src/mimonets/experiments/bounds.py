"""The paper's theorems: printed values found again, bounds held by simulation."""

from collections.abc import Iterable, Mapping
from typing import Any

from mimonets.experiments.bounds_report import theory_report
from mimonets.experiments.experiment import Record, RunOptions
from mimonets.experiments.paper import KERNEL_ERROR, KEYS_WITHIN_70_DEGREES
from mimonets.experiments.verdict import Row
from mimonets.theory import interference_bound


def measure_bounds(options: RunOptions) -> tuple[list[Row], Record]:
    """Evaluate every bound and simulate what it bounds."""
    return compare_bounds(theory_report())


def compare_bounds(report: dict[str, Any]) -> tuple[list[Row], Record]:
    """Put simulations beside bounds, and printed values beside ours."""
    printed = [
        Row(
            f"bound on two keys within 70 degrees, D={dim}",
            "probability",
            interference_bound(dim),
            value,
            tolerance=half,
        )
        for dim, (value, half) in KEYS_WITHIN_70_DEGREES.items()
    ]
    formulas = (row for row in report["rows"] if "kernel" not in row["name"])
    return [*printed, *_beside_simulation(formulas)], {"report": report}


def measure_relu_kernel(options: RunOptions) -> tuple[list[Row], Record]:
    """Compare the kernel of ReLU features with its closed form and the paper's approximation."""
    report = theory_report()
    rows = [row for row in report["rows"] if "kernel" in row["name"]]
    curves = {name: curve for name, curve in report["curves"].items() if "kernel" in name}
    kept = {"seed": report["seed"], "samples": report["samples"], "rows": rows, "curves": curves}
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
            error = KERNEL_ERROR if formula["kind"] == "approximation" else 0.0
            yield Row(what, "mean", simulated["mean"], value, tolerance=noise + error, note=note)
