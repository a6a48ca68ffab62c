import json
import sys
from pathlib import Path

import pytest

from mimonets import theory
from mimonets.experiments import Row, RunOptions, bounds_report, find_experiment
from mimonets.experiments.bounds_plots import plot_bounds
from mimonets.experiments.bounds_report import STEPS, theory_report

COMMITTED = Path(__file__).parents[2] / "results" / "bounds.json"


@pytest.fixture(scope="module")
def report():
    return theory_report()


def numbers(data):
    """All that was measured, in order, and all words; pytest.approx takes no nested data."""
    if isinstance(data, dict):
        return [item for key in data for item in [key, *numbers(data[key])]]
    if isinstance(data, list | tuple):
        return [item for value in data for item in numbers(value)]
    return [data]


def test_the_committed_record_is_what_the_command_gives(report):
    committed = json.loads(COMMITTED.read_text())
    found, expected = numbers(report), numbers(committed["report"])
    assert [x for x in found if isinstance(x, str)] == [x for x in expected if isinstance(x, str)]
    assert [x for x in found if not isinstance(x, str)] == pytest.approx(
        [x for x in expected if not isinstance(x, str)], rel=1e-6, abs=1e-12
    )


def test_no_simulation_is_above_its_bound(report):
    bounds = [row for row in report["rows"] if row["kind"] == "bound"]
    assert len(bounds) == 25
    for row in bounds:
        simulated = row["simulated"]
        assert simulated["mean"] <= row["value"] + 2 * simulated["standard_error"], row


def test_closed_forms_are_within_monte_carlo_error(report):
    closed = [row for row in report["rows"] if row["kind"] == "closed form"]
    assert len(closed) == 3
    for row in closed:
        error = abs(row["simulated"]["mean"] - row["value"])
        assert error < 4 * row["simulated"]["standard_error"], row


def test_the_curves_stay_below_their_bounds_too(report):
    pairs = []
    for panel in report["panels"]:
        lines, points = list(panel["lines"].values()), list(panel["points"].values())
        paired = list(zip(lines, points, strict=True)) if "N=" in str(panel["points"]) else None
        lines = lines[:1] if "exact" in str(panel["lines"]) else lines
        pairs += paired or [(line, found) for line in lines for found in points]
    assert len(pairs) == 19
    for line, points in pairs:
        for bound, found in zip(line, points, strict=True):
            assert found["mean"] <= bound + 2 * found["standard_error"]


def test_another_seed_draws_other_numbers_and_each_step_is_told():
    steps = []
    one = theory_report(1, samples=20, advance=lambda: steps.append(1))
    assert len(steps) == len(STEPS)
    assert theory_report(1, samples=20) == one
    other = theory_report(2, samples=20)
    assert other["rows"] != one["rows"]
    assert [row["name"] for row in other["rows"]] == [row["name"] for row in one["rows"]]


def test_without_matplotlib_the_install_line_is_named(report, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ValueError, match=r"pip install 'mimonets\[plot\]'"):
        plot_bounds(report, tmp_path / "x.png")


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match="samples=3.*draw at least 10"):
        theory_report(samples=3)


@pytest.mark.parametrize("name", ["Estimate", "plot_bounds", "plot_relu_kernel", "theory_report"])
def test_old_names_in_theory_still_work_with_a_warning(name):
    with pytest.warns(DeprecationWarning, match=f"{name} is now mimonets.experiments"):
        assert getattr(theory, name).__name__ == name


@pytest.fixture
def committed_report(monkeypatch):
    report = json.loads(COMMITTED.read_text())["report"]
    monkeypatch.setattr(bounds_report, "theory_report", lambda: report)
    return report


@pytest.mark.parametrize("name", ["bounds", "relu-kernel"])
def test_the_committed_rows_follow_from_the_report(name, committed_report):
    committed = json.loads((COMMITTED.parent / f"{name}.json").read_text())
    again = json.loads(json.dumps(find_experiment(name).run(RunOptions())))
    for record in (committed, again):
        del record["environment"]
    assert again == committed


def test_every_formula_is_held_to_its_simulation(committed_report):
    measures = (bounds_report.measure_bounds, bounds_report.measure_relu_kernel)
    rows = [row for measure in measures for row in measure(RunOptions())[0]]
    assert len(rows) == 2 + len(committed_report["rows"])
    assert {row.verdict for row in rows} == {"holds", "reproduced"}


def test_a_bound_that_is_broken_is_said_to_be():
    assert Row("anything", "probability", 0.2, at_most=0.1, tolerance=0.01).verdict == "differs"
    assert Row("anything", "probability", 0.105, at_most=0.1, tolerance=0.01).verdict == "holds"
