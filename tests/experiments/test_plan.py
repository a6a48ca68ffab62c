import shlex
from pathlib import Path

import pytest

from mimonets.cli.main import make_parser
from mimonets.experiments import RunOptions
from mimonets.experiments.plan import load_plan, plan_names, read_plan
from mimonets.experiments.registry import experiments, find_experiment
from mimonets.models import operating_points

RESULTS = Path(__file__).parents[2] / "results"


def test_every_plan_is_an_experiment_at_a_place_of_its_own():
    assert set(plan_names()) <= set(experiments())
    places = [one.order for one in experiments().values()]
    assert places == sorted(set(places))
    assert list(experiments())[:3] == ["cifar", "mnist", "svhn"], "the paper's order"


@pytest.mark.parametrize("name", plan_names())
def test_a_plan_is_sound(name):
    plan = load_plan(name)
    names = [trial.name for trial in plan.trials]
    assert len(set(names)) == len(names), "two trials would share a folder"
    for trial in plan.trials:
        if trial.removed:  # only its recorded runs are left
            assert trial.only_modes
            assert trial not in [one for one, _ in plan.jobs()]
            continue
        recipe = trial.load(seed=3)
        assert recipe.train.seed == 3
        earlier = names[: names.index(trial.name)]
        assert not trial.teacher or trial.teacher in earlier, "it would wait for its teacher"
        assert (
            set(trial.paper)
            <= set(trial.modes)
            <= {point.number for point in operating_points(recipe.model)}
        )
        assert all(10 < mean <= 100 for mean, _ in trial.paper.values() if name != "synthetic")


@pytest.fixture(scope="module")
def parser():
    return make_parser()


@pytest.mark.parametrize("name", experiments())
def test_commands_are_commands(name, parser):
    for command in experiments()[name].commands:
        program, *arguments = shlex.split(command)
        assert program == "mimonets"
        parser.parse_args(arguments)  # exits if it is none


def test_what_needs_a_gpu_says_how_long_it_takes_there():
    for experiment in experiments().values():
        assert experiment.needs_gpu == experiment.effort.startswith("GPU: ")


def test_an_unknown_experiment_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'mnist'"):
        find_experiment("mnst")


MINE = """\
source: mine
title: Digits
effort: a minute
trials:
  - {title: small, recipe: digits-mimoconv-n4, set: {train.epochs: 10}, seeds: 2, paper: {4: 90}}
"""


def test_a_plan_of_ones_own_is_one_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(MINE)
    experiment = find_experiment(str(path))
    assert experiment.name == "mine"
    start = "mimonets train digits-mimoconv-n4 --set train.epochs=10"
    place = "--out runs/reproduce/digits-mimoconv-n4,epochs=10"
    assert experiment.commands == [
        f"{start} {place}/seed-0 --resume",
        f"{start} --set train.seed=1 {place}/seed-1 --resume",
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("source", "sauce", r"plan mine: unknown key 'sauce' \(did you mean 'source'\?\).*missing"),
        ("seeds", "seed", r"trial 1: unknown key 'seed' \(did you mean 'seeds'\?\)"),
        ("title: small, ", "", "trial 1: 'title' is missing"),
        ("title: small", 'title: ""', "trial 1: 'title' is missing"),
        ("seeds: 2", "seeds: two", "trial 1: 'seeds' must be of type int, not 'two'"),
        ("{4: 90}", "{4: [1, 2, 3]}", r"a mean or \[mean, deviation\], not \[1, 2, 3\]"),
        ("{4: 90}", "{four: 90}", "numbers of active streams"),
        ("source: mine", "axis: speed\nsource: mine", "axis='speed' is not known: choose from str"),
        ("trials:", "averages: [7]\ntrials:", "average 1 must hold keys and values"),
        ("trials:", "differences: [{title: a, of: b}]\ntrials:", "difference 1: 'from' is missing"),
        ("title", "{", "plan mine is no YAML"),
        ("seeds: 2", "teacher: nobody", "small: teacher='nobody' must be the name of an earlier"),
        (
            "seeds: 2",
            "teacher: 'digits-mimoconv-n4,epochs=10,taught'",
            "must be the name of an earlier trial",
        ),
    ],
)
def test_a_mistake_in_a_plan_is_named(tmp_path, old, new, message):
    path = tmp_path / "mine.yaml"
    path.write_text(MINE.replace(old, new, 1))
    with pytest.raises(ValueError, match=message):
        find_experiment(str(path))


def test_a_scaled_trial_trains_less_in_a_folder_of_its_own(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(MINE)
    plan = read_plan(path)
    assert plan.scaled(1.0) is plan
    (trial,) = plan.scaled(0.3).trials
    assert trial.load(0).train.epochs == 3
    assert (trial.name, trial.scaled_down) == ("digits-mimoconv-n4,epochs=10,scale=0.3", True)
    for wrong in (0, -1, 2, float("nan")):
        with pytest.raises(ValueError, match="must be a fraction"):
            plan.scaled(wrong)
    # Training that is counted in steps shrinks with its warm-up.
    text = load_plan("lra").scaled(0.01).trials[1].load(0)
    assert (text.name, text.train.steps, text.train.warmup) == ("lra-text-transformer", 400, 80)


def test_a_trials_modes_are_read_once(monkeypatch):
    trial = load_plan("mnist").trials[4]
    assert trial.modes == (16,)
    monkeypatch.setattr("mimonets.experiments.plan.load_recipe", None)
    assert trial.modes == (16,)


def test_the_papers_average_is_the_mean_of_its_tasks():
    plan = load_plan("lra")
    for average in plan.averages:
        tasks = [trial for trial in plan.trials if trial.title.startswith(average.over)]
        means, deviations = zip(*(next(iter(t.paper.values())) for t in tasks), strict=True)
        assert len(tasks) == 5
        mean = sum(means) / 5
        if average.note:  # the quoted Transformer's: a misprint, it seems
            assert f"average {mean:.2f}" in average.note
            continue
        assert average.paper[0] == pytest.approx(mean, abs=0.02)
        if None not in deviations:
            assert average.paper[1] == pytest.approx(sum(deviations) / 5, abs=0.006)


def test_the_papers_drops_at_the_scale_of_a_cpu_are_those_of_its_deep_networks():
    table = load_plan("lra").trials
    printed = {trial.title: next(iter(trial.paper.values()))[0] for trial in table}
    plan = load_plan("lra-cpu")
    recipes = {trial.title: trial.recipe for trial in plan.trials}
    for drop in plan.differences:
        _, task, _, network = recipes[drop.of].split("-", 3)
        assert recipes[drop.above] == f"lra-{task}-cpu-performer"
        expected = printed[f"{network}, deep, {task}"] - printed[f"performer, deep, {task}"]
        assert drop.paper == pytest.approx(expected, abs=1e-9)
    assert len(plan.differences) == 11


def test_networks_of_a_task_get_the_same_budget_and_size():
    for task in ("listops", "text", "image"):
        trials = [t.load(0) for t in load_plan("lra-cpu").trials if f"lra-{task}-" in t.recipe]
        assert len({(t.train.steps, t.train.batch_size, t.train.lr) for t in trials}) == 1
        assert len({(t.model.depth, t.model.dim, t.model.heads) for t in trials}) == 1
        assert len({t.data for t in trials}) == 1


def test_recorded_runs_of_a_removed_trial_stay_in_the_result(tmp_path):
    experiment = find_experiment("cifar-map")
    recorded = experiment.result_in(RESULTS)
    options = RunOptions(runs=tmp_path, train=False, earlier=recorded["runs"])
    rows = {row["what"]: row for row in experiment.run(options)["rows"]}
    removed = [trial for trial in experiment.plan.trials if trial.removed]
    assert len(removed) == 4
    for row in recorded["rows"]:
        assert rows[row["what"]].get("ours") == row.get("ours")
