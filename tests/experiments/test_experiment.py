import json

import pytest

from mimonets.experiments import Experiment, Row, RunOptions
from mimonets.experiments.report import count_verdicts


@pytest.mark.parametrize(
    ("ours", "paper", "options", "verdict"),
    [
        (None, 80.4, {}, "not run"),
        (80.0, None, {}, "no value in the paper"),
        (80.0, None, {"scaled_down": True}, "scaled down"),
        (80.0, 80.4, {"tolerance": 1}, "reproduced"),
        (82.0, 80.4, {"tolerance": 1}, "differs"),
        (82.0, 80.4, {"tolerance": 1, "more_is_better": True}, "exceeded"),
        (70.0, 80.4, {"tolerance": 1, "more_is_better": True}, "differs"),
        (70.0, 80.4, {"tolerance": 1, "more_is_better": True, "scaled_down": True}, "scaled down"),
        (82.0, 80.4, {"tolerance": 1, "more_is_better": True, "scaled_down": True}, "exceeded"),
        (82.0, 80.4, {"more_is_better": True, "diverged": 1}, "diverged"),
        (80.0, 80.4, {"tolerance": 1, "our_recipe": True}, "reached"),
        (77.0, 80.4, {"tolerance": 3, "noise": 9}, "unclear"),
        (83.8, 80.4, {"tolerance": 3, "noise": 9, "more_is_better": True}, "unclear"),
        (90.0, 80.4, {"tolerance": 3, "noise": 9, "more_is_better": True}, "exceeded"),
        (70.0, 80.4, {"tolerance": 3, "noise": 9}, "differs"),
    ],
)
def test_a_row_says_how_ours_relates_to_the_papers(ours, paper, options, verdict):
    assert Row("anything", "%", ours, paper, **options).verdict == verdict


def test_a_row_leaves_out_what_is_not_known():
    assert Row("anything", "%", 0.0).as_dict() == {
        "what": "anything",
        "unit": "%",
        "ours": 0.0,
        "tolerance": 0.0,
        "more_is_better": False,
        "scaled_down": False,
        "verdict": "no value in the paper",
    }


def test_a_record_says_where_its_numbers_come_from(tmp_path):
    rows = [Row("one", "%", 1.0, 1.0), Row("two", "%", None, 1.0)]

    def draw(record, path):
        path.write_text(record["title"])

    experiment = Experiment(
        name="name",
        source="table 0",
        title="A title",
        effort="seconds",
        measure=lambda options: (rows, {"extra": 7}),
        draw=draw,
    )
    record = experiment.run(RunOptions())
    assert {"command", "commit", "cpu", "torch"} <= set(record["environment"])
    assert record["extra"] == 7
    assert count_verdicts(record) == "1 reproduced, 1 not run"
    written, plot = experiment.write(record, tmp_path / "new")
    assert json.loads(written.read_text()) == record
    assert plot.read_text() == "A title"
