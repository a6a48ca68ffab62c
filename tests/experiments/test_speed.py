from dataclasses import replace

import pytest
import torch

from mimonets import MIMOConv, MIMOConvConfig, SlimmableWideResNet, SlimmableWideResNetConfig
from mimonets._device import use_threads
from mimonets.cli.main import main
from mimonets.evaluation import count_macs
from mimonets.evaluation.bench import Candidate, race_candidates
from mimonets.experiments.plan import Plan, Trial
from mimonets.experiments.speed import (
    SETTINGS,
    draw_against_speed,
    measure_plan_speed,
    speed_table,
    weight_bytes,
)
from mimonets.models import FixedAt, find_point
from mimonets.recipes.execute import make_model

SMALL = ("model.width=1",)
TRIAL = Trial("one", "One", "digits-mimoconv-dynamic", settings=SMALL, only_modes=(1, 4))
TWO = replace(TRIAL, name="two", title="Two", settings=(*SMALL, "train.lr=1"))
TITLES = ("One, 1 active", "One, 4 active")
PLAN = Plan("small", "nowhere", "A title", "seconds", trials=(TRIAL, TWO))


QUICK = replace(SETTINGS, rounds=1, engines=("eager",))


def test_trials_that_differ_in_training_alone_share_their_speed(tmp_path):
    record = measure_plan_speed(PLAN, settings=QUICK)
    titles = ["One, 1 active", "Two, 1 active", "One, 4 active", "Two, 4 active"]
    assert [row["what"] for row in record["rows"]] == titles
    speeds = [row["inputs_per_second"] for row in record["rows"]]
    assert (speeds[0], speeds[2]) == (speeds[1], speeds[3])
    assert speeds[2] != speeds[0]
    assert speed_table(record).row_count == 4
    with pytest.raises(ValueError, match="no trial with 'three' in its name"):
        measure_plan_speed(PLAN, only="three")
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


TINY = {"depth": 10, "width": 1, "initial_width": 1, "in_channels": 1, "image_size": 8}


def test_every_point_is_timed_and_described():
    model = make_model(TRIAL.load(0))
    slow, fast = measure_plan_speed(replace(PLAN, trials=(TRIAL,)), settings=QUICK)["rows"]
    assert (slow["what"], fast["what"], slow["engine"]) == (*TITLES, "eager")
    assert slow["weight_bytes"] == fast["weight_bytes"] == weight_bytes(model)
    assert fast["peak_bytes"] < slow["peak_bytes"]
    assert fast["macs"] == count_macs(model, 4).paper


def test_a_point_runs_with_its_options():
    model = MIMOConv(MIMOConvConfig(**TINY, num_streams=2, num_classes=3)).eval()
    called = []
    model.register_forward_pre_hook(
        lambda _, inputs, options: called.append((len(inputs[0]), options["active_streams"])),
        with_kwargs=True,
    )
    inputs = model.example_inputs(4)
    both = {str(n): Candidate(model, find_point(model, n), "eager", inputs) for n in (1, 2)}
    race_candidates(both, replace(QUICK, warmup=0))
    assert called == [(4, 1), (4, 2)]


def test_points_share_their_weights():
    config = SlimmableWideResNetConfig(**TINY, widths=(1.0, 0.5), shrinks=(1, 1))
    network = SlimmableWideResNet(config)
    assert weight_bytes(FixedAt(network, find_point(network, 2))) == weight_bytes(network)
    expected = sum(t.numel() * t.element_size() for t in network.state_dict().values())
    assert weight_bytes(network) == expected


def test_the_number_of_threads_comes_back():
    before = torch.get_num_threads()
    with use_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
