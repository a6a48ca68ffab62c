import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mimonets._seeds import mean_and_deviation
from mimonets.checkpoints import load
from mimonets.experiments import RunOptions
from mimonets.experiments.figures import DRAWINGS
from mimonets.experiments.plan import Average, Difference, Plan, Trial
from mimonets.experiments.sweep import measure_plan
from mimonets.experiments.trained import (
    average_row,
    difference_row,
    read_run_record,
    run_folder,
    trial_rows,
)
from mimonets.experiments.verdict import accuracy_row
from mimonets.models.base import eval_mode
from mimonets.recipes.execute import split_batches

SMALL = (
    *("train.epochs=2", "data.limit=64", "train.batch_size=8", "train.threads=1"),
    *("model.width=1", "model.initial_width=1"),
)
TRIAL = Trial(
    name="small",
    title="Small",
    recipe="digits-mimoconv-dynamic",
    settings=SMALL,
    seeds=(0, 1),
    only_modes=(1, 4),
    paper={4: (98.0, 0.5)},
    group="MIMOConv",
    scaled_down=False,
    note="",
)
PLAN = Plan("small", "nowhere", "A title", "seconds", trials=(TRIAL,), axis="streams")
ONE = replace(TRIAL, seeds=(0,))


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    """Train seed 0: the folder of its run, and its record."""
    place = tmp_path_factory.mktemp("trained") / "runs"
    _, details = measure_plan(replace(PLAN, trials=(ONE,)), RunOptions(runs=place))
    return place, details["runs"][0]


@pytest.fixture
def trained(trained_once, tmp_path):
    """Give a folder of runs where seed 0 is finished."""
    return shutil.copytree(trained_once[0], tmp_path / "runs")


def test_a_plan_trains_tests_and_resumes(tmp_path):
    told = []
    place = RunOptions(runs=tmp_path, only="seed-1", tell=told.append)
    rows, details = measure_plan(PLAN, place)
    assert [run["seed"] for run in details["runs"]] == [1]
    assert told[0] == "training small/seed-1"
    assert told[1].startswith("tested small/seed-1: ")
    first = (run_folder(TRIAL, 1, tmp_path) / "test.json").read_text()

    rows, details = measure_plan(PLAN, replace(place, only=""))
    assert told[2] == "training small/seed-0"
    assert len(told) == 4, "a finished run is left alone"
    assert (run_folder(TRIAL, 1, tmp_path) / "test.json").read_text() == first
    zero, one = details["runs"]
    assert (zero["seed"], one["seed"]) == (0, 1)
    assert zero["test"]["4"]["macs"] < zero["test"]["1"]["macs"]
    assert [row["epoch"] for row in zero["history"]] == [1, 2]
    accuracies = [100 * run["test"]["4"]["accuracy"] for run in details["runs"]]
    assert rows[1].ours == pytest.approx(sum(accuracies) / 2)
    assert rows[1].deviation == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
    assert (rows[0].paper, rows[1].paper, rows[1].seeds) == (None, 98.0, 2)
    assert str(Path.home()) not in json.dumps(details), "records carry no paths"

    again = measure_plan(PLAN, RunOptions(runs=tmp_path, train=False))
    assert again == (rows, details)


def test_runs_of_an_earlier_result_are_kept_and_not_trained_again(trained_once, tmp_path):
    told, there = [], trained_once[1]
    place = RunOptions(runs=tmp_path / "here", earlier=[there], tell=told.append)
    rows, details = measure_plan(PLAN, place)
    assert [line.split(":")[0] for line in told] == ["training small/seed-1", "tested small/seed-1"]
    assert [run["seed"] for run in details["runs"]] == [0, 1]
    assert details["runs"][0] == there
    assert rows[0].seeds == 2

    mine = {**details["runs"][1], "date": "long ago"}
    again = measure_plan(PLAN, replace(place, earlier=[mine, there]))
    assert again == (rows, details), "a run that finished here counts, not the one of the file"


def test_an_earlier_run_counts_if_it_was_tested_in_every_mode(trained_once, tmp_path):
    run = trained_once[1]
    for lacking in ({**run, "test": {"4": run["test"]["4"]}}, {**run, "trial": "large"}):
        place = RunOptions(runs=tmp_path / "here", earlier=[lacking, run], train=False)
        assert measure_plan(PLAN, place)[1]["runs"] == [run]
        place = replace(place, earlier=[lacking])
        assert measure_plan(PLAN, place)[1]["runs"] == []


def test_a_run_that_diverges_is_written_down_and_the_others_go_on(tmp_path):
    wild = replace(TRIAL, name="wild", settings=(*SMALL, "train.lr=1e30"))
    told = []
    plan = replace(PLAN, trials=(wild, replace(TRIAL, seeds=(0,))))
    place = RunOptions(runs=tmp_path, tell=told.append)
    rows, details = measure_plan(plan, place)
    assert [line.split()[0] for line in told].count("diverged") == 2
    assert "Lower train.lr" in details["runs"][0]["diverged"]
    assert rows[0].note == "2 of 2 seeds diverged"
    assert rows[0].verdict == "diverged"
    assert rows[2].ours is not None
    assert measure_plan(plan, place) == (rows, details), "what diverged is not tried again"


def test_what_was_not_run_is_said_to_be_so(tmp_path):
    rows, details = measure_plan(PLAN, RunOptions(runs=tmp_path, train=False))
    assert details["runs"] == []
    assert [row.verdict for row in rows] == ["not run", "not run"]


@pytest.mark.parametrize("axis", DRAWINGS)
def test_drawings_show_what_is_there(tmp_path, axis):
    runs = [
        {
            "trial": "small",
            "seed": seed,
            "history": [{"epoch": e, "validation": {"1": 0.5, "4": s}} for e in (1, 2)],
            "test": {m: {"accuracy": a, "macs": 2e7 / m} for m, a in ((1, 0.9), (4, s))},
        }
        for seed, s in enumerate((0.7, 0.8))
    ]
    for run in runs:
        run["test"] = {str(mode): found for mode, found in run["test"].items()}
    missing = replace(TRIAL, name="other", title="Other", group="Missing")
    rows = [row.as_dict() for trial in (TRIAL, missing) for row in trial_rows(trial, runs)]
    record = {"title": "A title", "rows": rows, "runs": runs}
    path = DRAWINGS[axis](record, tmp_path / "new" / "plot.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_runs_under_a_recipes_former_name_are_found(tmp_path):
    trial = replace(TRIAL, name="recall-mimoformer-2x2", recipe="recall-mimoformer-2x2")
    assert run_folder(trial, 0, tmp_path) == tmp_path / "recall-mimoformer-2x2" / "seed-0"
    old = tmp_path / "recall-mimoformer-n2" / "seed-0"
    old.mkdir(parents=True)
    assert run_folder(trial, 0, tmp_path) == old


def test_training_time_and_slopes_are_kept_where_a_run_has_them(trained):
    result = run_folder(ONE, 0, trained) / "result.json"
    written = {**json.loads(result.read_text()), "seconds": 12.5, "slopes": [0.25]}
    result.write_text(json.dumps(written))
    run = read_run_record(ONE, 0, trained)
    assert (run["seconds"], run["slopes"]) == (12.5, [0.25])


def row(what, *values, paper=(None, None), **more):
    by_seed = dict(enumerate(values))
    numbers = mean_and_deviation(values)
    return accuracy_row(what, *numbers, len(values), paper, by_seed=by_seed, **more)


def test_an_average_is_over_trials_seed_by_seed_and_needs_all_of_them():
    rows = [row("net, one", 59.0, 60.0, 64.0), row("net, two", 61.0, 60.0, 56.0)]
    average = Average("average", over="net", paper=(60.5, 1.0))
    found = average_row(average, rows)
    assert (found.ours, found.deviation, found.seeds) == (60.0, 0.0, 3)
    assert found.verdict == "reproduced"
    assert average_row(average, [*rows, row("net, three")]).verdict == "not run"
    assert average_row(average, []).verdict == "not run"
    fast = Average(title="fast", over="net, *, 4 active")
    rows = [row("net, one, 4 active", 50.0), row("net, one, 1 active", 90.0)]
    assert average_row(fast, rows).ours == 50.0


def test_a_difference_is_taken_seed_by_seed_and_needs_both_of_its_trials():
    less = {"scaled_down": True}
    rows = [row("net", 50.0, 53.0, 56.0), row("plain", 52.0, 56.0, 60.0), row("missing", **less)]
    found = difference_row(Difference("net - plain", "net", "plain", paper=-3.5), rows)
    assert (found.ours, found.deviation, found.unit, found.paper) == (-3.0, 1.0, "points", -3.5)
    assert found.verdict == "reproduced"
    apart = difference_row(Difference("net - plain", "net", "plain", paper=-6.0), rows)
    assert apart.verdict == "differs"
    assert difference_row(Difference("a", "missing", "plain"), rows).verdict == "not run"
    longer = row("longer", 90.0, 80.0, 100.0, 40.0)  # a seed that the other does not have
    found = difference_row(Difference("a", "longer", "plain"), [*rows, longer])
    assert (found.ours, found.seeds) == (34.0, 3)
    with pytest.raises(ValueError, match="'other'.*must be one of net"):
        difference_row(Difference("a", "net", "other"), rows)


def test_a_scaled_plan_is_marked_and_kept_apart(tmp_path):
    rows, details = measure_plan(replace(PLAN, trials=(ONE,)), RunOptions(runs=tmp_path, scale=0.5))
    assert details["scale"] == 0.5
    assert details["runs"][0]["trial"] == "small,scale=0.5"
    assert [row["epoch"] for row in details["runs"][0]["history"]] == [1]
    assert {row.verdict for row in rows} <= {"scaled down", "exceeded"}


def test_a_trial_learns_from_the_network_of_another_with_the_same_seed(tmp_path):
    teacher = replace(TRIAL, seeds=(0,))
    taught = replace(teacher, name="small,taught", teacher="small")
    told = []
    place = RunOptions(runs=tmp_path, tell=told.append)
    _, details = measure_plan(replace(PLAN, trials=(taught,)), place)
    assert details["failed"] == ["small,taught/seed-0"]
    assert "learns from small/seed-0, which has not been trained" in told[-1]
    _, details = measure_plan(replace(PLAN, trials=(teacher, taught)), place)
    alone, other = details["runs"]
    assert alone["history"][-1]["loss"] != other["history"][-1]["loss"]
    assert str(tmp_path) not in json.dumps(details), "records carry no paths"
    assert taught.scaled(0.5).teacher == "small,scale=0.5"
    changes = "".join(f" --set {setting}" for setting in SMALL)
    start = f"mimonets train digits-mimoconv-dynamic{changes}"
    place, model = "runs/reproduce/small", "train.teacher=runs/reproduce/small/seed"
    assert TRIAL.command(0) == f"{start} --out {place}/seed-0 --resume"
    assert (
        taught.command(0) == f"{start} --set {model}-0/model --out {place},taught/seed-0 --resume"
    )
    assert taught.command(1, Path("r"), Path("a b")) == (
        f"{start} --set train.seed=1 --set train.teacher=r/small/seed-1/model --data-dir 'a b' "
        f"--out r/small,taught/seed-1 --resume"
    )


def test_a_teacher_that_only_a_result_file_has_is_trained_again(trained_once, tmp_path):
    taught = replace(ONE, name="small,taught", teacher="small")
    plan = replace(PLAN, trials=(ONE, taught))
    told = []
    place = RunOptions(runs=tmp_path / "here", earlier=[trained_once[1]], tell=told.append)
    _, details = measure_plan(plan, place)
    assert told[0] == "training small/seed-0"
    assert [run["trial"] for run in details["runs"]] == ["small", "small,taught"]


def test_without_its_teacher_a_trial_is_left_out_and_the_others_go_on(tmp_path):
    teacher = replace(TRIAL, name="wild", seeds=(0,))
    teacher = replace(teacher, settings=(*SMALL, "train.lr=1e30"))
    taught = replace(TRIAL, name="small,taught", teacher="wild", seeds=(0,))
    told = []
    plan = replace(PLAN, trials=(teacher, taught, replace(TRIAL, seeds=(0,))))
    rows, _ = measure_plan(plan, RunOptions(runs=tmp_path, tell=told.append))
    assert "left out small,taught/seed-0: its teacher diverged" in told
    assert [row.verdict for row in rows][2] == "not run"
    assert rows[4].ours is not None


def test_a_damaged_measurement_is_named(trained):
    (trained / "small" / "seed-0" / "test.json").write_text('{"modes"')
    with pytest.raises(ValueError, match="seed-0/test.json.*measured again"):
        measure_plan(replace(PLAN, trials=(ONE,)), RunOptions(runs=trained, train=False))


def test_a_finished_run_of_another_recipe_is_not_taken_for_this_one(trained):
    changed = replace(ONE, settings=(*SMALL, "train.lr=0.00001"))
    told = []
    other = replace(PLAN, trials=(changed,))
    rows, details = measure_plan(other, RunOptions(runs=trained, tell=told.append))
    assert "another recipe: it differs in train.lr" in told[-1]
    assert (details["runs"], details["failed"]) == ([], ["small/seed-0"])
    assert {row.verdict for row in rows} == {"not run"}


def test_a_network_with_gears_is_tested_in_each(tmp_path):
    geared = Trial(
        name="geared",
        title="Geared",
        recipe="cifar10-cpu-gears-widths",
        settings=(
            *(*SMALL, "data.name=digits", "data.crop=null", "data.validation=0"),
            *("model.in_channels=1", "model.image_size=8", "model.pool=1"),
        ),
    )
    plan = replace(PLAN, trials=(geared,))
    rows, details = measure_plan(plan, RunOptions(runs=tmp_path))
    slow, fast = rows
    assert (slow.what, fast.what) == ("Geared, gear 1", "Geared, gear 2")
    assert fast.macs < slow.macs / 3
    model = load(run_folder(geared, 0, tmp_path) / "model")
    for gear, row in enumerate(rows, start=1):
        batches = split_batches(geared.load(0).data, "test", spec=model.input_spec)
        with eval_mode(model):
            right = [(model(x, point=gear).argmax(1) == y) for x, y in batches.epoch(0)]
        assert row.ours == pytest.approx(100 * torch.cat(right).float().mean().item())
    assert measure_plan(plan, RunOptions(runs=tmp_path, train=False)) == (rows, details)


def test_a_mode_that_was_not_tested_yet_is_tested_and_no_other(tmp_path):
    one = replace(PLAN, trials=(replace(TRIAL, seeds=(0,), only_modes=(1,)),))
    rows, _ = measure_plan(one, RunOptions(runs=tmp_path))
    other = replace(PLAN, trials=(replace(TRIAL, seeds=(0,)),))
    both, _ = measure_plan(other, RunOptions(runs=tmp_path))
    assert [row.ours is None for row in both] == [False, False]
    assert both[0].ours == rows[0].ours
