"""Every bound beside a simulation of what it bounds, as plain data: for tables, plots and tests."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator

from mimonets.theory.cleanup import cleanup_noise_bound, wrong_item_bound
from mimonets.theory.dimensionality import (
    any_pair_bound,
    hadamard_norm_mean,
    hadamard_norm_tail,
    interference_bound,
    interference_probability,
)
from mimonets.theory.interference import PAPER_BOUNDS, bernstein, crosstalk, crosstalk_peak
from mimonets.theory.kernel import (
    relu_kernel,
    relu_kernel_approximation,
    superposed_relu_kernel,
)
from mimonets.theory.simulation import (
    Estimate,
    simulate_cleanup_noise,
    simulate_crosstalk,
    simulate_hadamard_norm,
    simulate_interference,
    simulate_relu_kernel,
    simulate_sum,
    simulate_superposed_relu_kernel,
    simulate_wrong_item,
    unit_streams,
)
from mimonets.theory.tails import hoeffding_bound
from mimonets.vsa import bipolar_keys, gaussian_keys

Row = dict[str, Any]
ALPHA = 0.5  # off by half
WIDTHS = (8, 16, 32, 64, 128, 256, 512, 1024)
GRIDS = ((2, 2), (4, 4))


def theory_report(
    seed: int = 0, samples: int = 5_000, advance: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Evaluate and simulate every bound; the same seed and samples give the same numbers.

    Args:
        seed: Of all that is drawn.
        samples: Draws per simulated number; those that cost more take a fifth or a tenth of it.
        advance: Called after each of the :data:`STEPS` steps.

    Returns:
        ``rows``, one per formula and setting; ``curves``, what :mod:`mimonets.theory.plots` draws.
    """
    if samples < 10:
        raise ValueError(f"samples={samples} are too few to count with: draw at least 10.")
    rows: list[Row] = []
    curves: dict[str, Any] = {}
    for number, step in enumerate(STEPS):
        # A generator per step: adding one leaves the numbers of the others as they are.
        generator = torch.Generator().manual_seed(1000 * seed + number)
        step(rows, curves, samples, generator)
        advance()
    return {"seed": seed, "samples": samples, "rows": rows, "curves": curves}


def _keys(rows: list[Row], curves: dict[str, Any], samples: int, generator: Generator) -> None:
    curve: dict[str, Any] = {"dim": list(WIDTHS[:-2]), "bound": [], "exact": []}
    makers = {"bipolar": bipolar_keys, "Gaussian": gaussian_keys}
    for dim in curve["dim"]:
        curve["bound"].append(interference_bound(dim))
        curve["exact"].append(interference_probability(dim))
        for kind, make in makers.items():
            found = simulate_interference(dim, keys=make, samples=samples, generator=generator)
            curve.setdefault(kind, []).append(_plain(found))
            if dim in (16, 64):
                setting = f"two {kind} keys, D={dim}, 70°"
                bound = curve["bound"][-1]
                rows.append(_row("blessing of dimensionality", "A.2", setting, bound, found))
    curves["keys"] = curve
    found = simulate_interference(128, num_streams=9, samples=samples, generator=generator)
    setting = "any two of 9 bipolar keys, D=128, 70°"
    rows.append(_row("all pairs of keys", "ours", setting, any_pair_bound(128, 9), found))


def _sums(rows: list[Row], curves: dict[str, Any], samples: int, generator: Generator) -> None:
    limits = [1.0] * 64
    curve: dict[str, Any] = {"t": [4.0 * step for step in range(8)], "bound": [], "simulated": []}
    for t in curve["t"]:
        found = simulate_sum(t, limits, samples=samples, generator=generator)
        curve["bound"].append(hoeffding_bound(t, limits))
        curve["simulated"].append(_plain(found))
        if t == 16:
            bound = curve["bound"][-1]
            rows.append(_row("Hoeffding", "G", "sum of 64 signs beyond 16", bound, found))
    curves["sums"] = curve


def _norms(rows: list[Row], curves: dict[str, Any], samples: int, generator: Generator) -> None:
    mean = simulate_hadamard_norm(64, samples=samples, generator=generator)
    value = hadamard_norm_mean(64)
    name = "norm of a Hadamard product"
    rows.append(_row(name, "G", "mean square, unit vectors, D=64", value, mean, "closed form"))
    curve: dict[str, Any] = {"beta": [step / 10 for step in range(6)], "bound": []}
    curve["bound"] = [hadamard_norm_tail(beta) for beta in curve["beta"]]
    for dim in (16, 64, 256):
        found = [
            simulate_hadamard_norm(dim, beta, samples=samples, generator=generator)
            for beta in curve["beta"]
        ]
        curve[f"D={dim}"] = [_plain(estimate) for estimate in found]
        if dim == 64:
            setting = "more than 1.5 times its mean, D=64"
            rows.append(_row(name, "G", setting, curve["bound"][-1], found[-1]))
    curves["norms"] = curve


def _cleanup(rows: list[Row], curves: dict[str, Any], samples: int, generator: Generator) -> None:
    curve: dict[str, Any] = {"dim": list(WIDTHS[:-1])}
    for streams in (2, 4, 8):
        for dim in curve["dim"]:
            values = bipolar_keys(streams, dim, generator=generator, dtype=torch.float64)
            item = values[0]
            bound = cleanup_noise_bound(values, item, 0, ALPHA)
            found = simulate_cleanup_noise(
                values, item, 0, ALPHA, samples=samples, generator=generator
            )
            points = curve.setdefault(f"N={streams}", {"bound": [], "simulated": []})
            points["bound"].append(bound)
            points["simulated"].append(_plain(found))
            if streams == 4 and dim in (64, 128):
                setting = f"bipolar values, D={dim}, N=4, α=0.5"
                rows.append(_row("dictionary cleanup noise", "A.3", setting, bound, found))
    curves["cleanup"] = curve
    found = simulate_wrong_item(64, 4, 10, samples=samples // 10, generator=generator)
    setting = "10 bipolar entries, D=64, N=4"
    rows.append(_row("wrong entry", "ours", setting, wrong_item_bound(64, 4, 10), found))


def _attention(rows: list[Row], curves: dict[str, Any], samples: int, generator: Generator) -> None:
    for grid in GRIDS:
        name = f"{grid[0]}x{grid[1]}"
        curve: dict[str, Any] = {"dim": list(WIDTHS), "bounds": {}, "simulated": []}
        for dim in WIDTHS:
            k, q = unit_streams(dim, grid, 0.9, generator)
            table = crosstalk(k, q, (0, 0), ALPHA)
            bounds = {title: bound(table) for title, bound in PAPER_BOUNDS.items()}
            bounds["Bernstein (ours)"] = bernstein(table, crosstalk_peak(k, q, (0, 0), ALPHA))
            found = simulate_crosstalk(k, q, (0, 0), ALPHA, samples=samples, generator=generator)
            curve["simulated"].append(_plain(found))
            for title, bound in bounds.items():
                curve["bounds"].setdefault(title, []).append(bound)
                if (grid, dim) in (((2, 2), 64), ((2, 2), 512), ((4, 4), 512)):
                    source = "ours" if "ours" in title else "D"
                    setting = f"{name}, D={dim}, cos 0.9, α=0.5"
                    full = f"FAVOR+S, {title.removesuffix(' (ours)')}"
                    rows.append(_row(full, source, setting, bound, found))
        curves[f"attention {name}"] = curve


def _kernel(rows: list[Row], curves: dict[str, Any], samples: int, generator: Generator) -> None:
    cosines = [step / 10 for step in range(-10, 11)]
    found = [
        simulate_relu_kernel(cosine, samples=10 * samples, generator=generator)
        for cosine in cosines
    ]
    curves["kernel"] = [
        {"cosine": cosine, **_plain(estimate)}
        for cosine, estimate in zip(cosines, found, strict=True)
    ]
    for cosine in (0.0, 0.5):
        estimate = found[cosines.index(cosine)]
        setting = f"unit vectors, cosine {cosine:g}"
        for kind, value in (
            ("closed form", relu_kernel(cosine)),
            ("approximation", relu_kernel_approximation(cosine)),
        ):
            rows.append(_row(f"ReLU kernel, {kind}", "C.2", setting, value, estimate, kind))

    for grid in GRIDS:
        name = f"{grid[0]}x{grid[1]}"
        points = curves[f"kernel {name}"] = []
        for cosine in cosines[::2]:
            estimate = simulate_superposed_relu_kernel(
                cosine, grid, 64, samples=samples // 5, generator=generator
            )
            points.append({"cosine": cosine, **_plain(estimate)})
            if cosine in (0.0, 1.0):
                setting = f"{name}, D=64, cosine {cosine:g}"
                value, kind = superposed_relu_kernel(cosine, grid), "approximation"
                row = _row("ReLU kernel in superposition", "ours", setting, value, estimate, kind)
                rows.append(row)


STEPS = (_keys, _sums, _norms, _cleanup, _attention, _kernel)


def _row(
    name: str, source: str, setting: str, value: float, found: Estimate, kind: str = "bound"
) -> Row:
    where = {"name": name, "source": source, "setting": setting, "kind": kind}
    return {**where, "value": value, "simulated": _plain(found)}


def _plain(found: Estimate) -> dict[str, float]:
    return {"mean": found.mean, "standard_error": found.standard_error, "samples": found.samples}
