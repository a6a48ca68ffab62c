from dataclasses import replace

import pytest

from mimonets.cli.main import main
from mimonets.experiments.plan import Plan, Trial
from mimonets.experiments.speed import draw_against_speed, measure_plan_speed, speed_table

SMALL = ("model.width=1",)
TRIAL = Trial("one", "One", "digits-mimoconv-dynamic", settings=SMALL, only_modes=(1, 4))
TWO = replace(TRIAL, name="two", title="Two", settings=(*SMALL, "train.lr=1"))
PLAN = Plan("small", "nowhere", "A title", "seconds", trials=(TRIAL, TWO))


@pytest.fixture
def eager_only(monkeypatch):
    monkeypatch.setattr("mimonets.experiments.speed.ENGINES", ("eager",))


@pytest.mark.usefixtures("eager_only")
def test_trials_that_differ_in_training_alone_share_their_speed(tmp_path):
    record = measure_plan_speed(PLAN, tmp_path, rounds=1)
    titles = ["One, 1 active", "Two, 1 active", "One, 4 active", "Two, 4 active"]
    assert [row["what"] for row in record["rows"]] == titles
    speeds = [row["inputs_per_second"] for row in record["rows"]]
    assert (speeds[0], speeds[2]) == (speeds[1], speeds[3])
    assert speeds[2] != speeds[0]
    assert speed_table(record).row_count == 4
    with pytest.raises(ValueError, match="no trial with 'three' in its name"):
        measure_plan_speed(PLAN, tmp_path, only="three")
    row = {"what": "One, 4 active", "unit": "%", "ours": 90.0, "deviation": 1.0, "group": "a"}
    accuracies = {"experiment": "small", "title": "A title", "rows": [row]}
    pytest.importorskip("matplotlib")
    plot = draw_against_speed(accuracies, record, tmp_path / "plot.png")
    assert plot.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="has both an accuracy and a speed: train some"):
        draw_against_speed({**accuracies, "rows": []}, record, plot)


def test_what_trains_nothing_has_no_networks_to_time(capsys):
    assert main(["reproduce", "bounds", "--speed"]) != 0
    assert "bounds has no networks to time: leave out --speed." in capsys.readouterr().err
