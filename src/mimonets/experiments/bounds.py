"""The paper's theorems: printed values found again, bounds held by simulation."""

from collections.abc import Iterable, Mapping
from typing import Any

from mimonets.experiments.experiment import Record, Row, Workplace
from mimonets.theory import interference_bound, theory_report

# Two keys within 70 degrees: printed value and half of its last digit, by width; appendix A.2.
PRINTED = {16: (0.785, 0.0005), 64: (0.0474, 0.00005)}
POWER_ERROR = 0.0073  # the paper's approximation of the kernel is this far off at most


def measure_bounds(workplace: Workplace) -> tuple[list[Row], Record]:
    """Evaluate every bound and simulate what it bounds."""
    report = theory_report()
    printed = [
        Row(
            f"bound on two keys within 70 degrees, D={dim}",
            "probability",
            interference_bound(dim),
            value,
            tolerance=half,
        )
        for dim, (value, half) in PRINTED.items()
    ]
    formulas = (row for row in report["rows"] if "kernel" not in row["name"])
    return [*printed, *_beside_simulation(formulas)], {"report": report}


def measure_relu_kernel(workplace: Workplace) -> tuple[list[Row], Record]:
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
            error = POWER_ERROR if formula["kind"] == "approximation" else 0.0
            yield Row(what, "mean", simulated["mean"], value, tolerance=noise + error, note=note)
