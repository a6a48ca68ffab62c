import shlex

import pytest

from mimonets.cli.main import make_parser
from mimonets.experiments.plan import load_plan, plan_names
from mimonets.experiments.registry import ALL, experiments, find_experiment


def test_every_plan_is_an_experiment():
    assert set(plan_names()) == {one for one in ALL if isinstance(one, str)}


@pytest.mark.parametrize("name", plan_names())
def test_a_plan_is_sound(name):
    plan = load_plan(name)
    names = [trial.name for trial in plan.trials]
    assert len(set(names)) == len(names), "two trials would share a folder"
    for trial in plan.trials:
        recipe = trial.load(seed=3)
        assert recipe.train.seed == 3
        streams = getattr(recipe.model, "num_streams", 1)
        assert set(trial.paper) <= set(trial.modes) <= set(range(1, streams + 1))
        assert all(10 < mean <= 100 for mean, _ in trial.paper.values() if name != "synthetic")


@pytest.mark.parametrize("name", experiments())
def test_commands_are_commands(name):
    for command in experiments()[name].commands:
        program, *arguments = shlex.split(command)
        assert program == "mimonets"
        make_parser().parse_args(arguments)  # exits if it is none


def test_what_needs_a_gpu_says_how_long_it_takes_there():
    for experiment in experiments().values():
        assert experiment.needs_gpu == experiment.effort.startswith("GPU: ")


def test_an_unknown_experiment_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'mnist'"):
        find_experiment("mnst")
