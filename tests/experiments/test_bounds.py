"""The theorems as experiments; that the report itself is found again is tests/theory's to check."""

import json
from pathlib import Path

import pytest

from mimonets.experiments import Row, RunOptions, bounds, find_experiment

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def committed_report(monkeypatch):
    report = json.loads((RESULTS / "bounds.json").read_text())["report"]
    monkeypatch.setattr(bounds, "theory_report", lambda: report)
    return report


@pytest.mark.parametrize("name", ["bounds", "relu-kernel"])
def test_the_committed_rows_follow_from_the_report(name, committed_report):
    committed = json.loads((RESULTS / f"{name}.json").read_text())
    again = json.loads(json.dumps(find_experiment(name).run(RunOptions())))
    for record in (committed, again):
        del record["environment"]
    assert again == committed


def test_every_formula_is_held_to_its_simulation(committed_report):
    rows = bounds.measure_bounds(RunOptions())[0] + bounds.measure_relu_kernel(RunOptions())[0]
    assert len(rows) == 2 + len(committed_report["rows"])
    assert {row.verdict for row in rows} == {"holds", "reproduced"}


def test_a_bound_that_is_broken_is_said_to_be():
    assert Row("anything", "probability", 0.2, at_most=0.1, tolerance=0.01).verdict == "differs"
    assert Row("anything", "probability", 0.105, at_most=0.1, tolerance=0.01).verdict == "holds"
