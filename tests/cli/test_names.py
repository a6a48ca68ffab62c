"""Every command takes a network by any of its names."""

import json

import numpy as np
import pytest

from mimonets import ExportOptions, export, load
from mimonets.cli.main import main
from mimonets.cli.open_models import find_config, find_network, find_recipe, find_weights
from mimonets.recipes import load_recipe
from mimonets.recipes.execute import run_recipe

RECIPE = "digits-mimoconv-n4"
SMALL = ["model.width=1", "model.initial_width=1", "train.epochs=1", "data.limit=128"]
KINDS = ["recipe", "run", "saved model", "export", "shipped"]


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """The folder to call commands in, and a network by each of its names."""
    pytest.importorskip("sklearn")
    place = tmp_path_factory.mktemp("names")
    recipe = load_recipe(RECIPE, SMALL)
    run = place / "runs" / RECIPE  # where `mimonets train` leaves it
    run_recipe(recipe, run)
    options = ExportOptions(recipe=recipe.without_paths().as_dict())
    export(
        load(run / "model"),
        place / "exported",
        formats=("pt2",),
        modes=[4],
        measure=False,
        options=options,
    )
    np.save(place / "digit.npy", np.zeros((8, 8), dtype=np.uint8))
    own = {"recipe": RECIPE, "run": str(run), "saved model": str(run / "model")}
    return place, own | {"export": str(place / "exported"), "shipped": "digits"}


COMMANDS = {
    "recipes": (),
    "cost": ("--active-streams", "4"),
    "evaluate": ("--active-streams", "4"),
    "predict": ("digit.npy",),
    "export": ("--out", "out", "--format", "pt2", "--active-streams", "4"),
    "bench": ("--rounds", "1", "--warmup", "0", "--active-streams", "4"),
    "train": ("--out", "again", "--taste"),
}


LONG = {"train": "mimonets.recipes.execute.run_recipe", "export": "mimonets.inference.export"}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_command_takes_a_network_by_any_name(names, monkeypatch, capsys, command, kind):
    place, own = names
    monkeypatch.chdir(place)
    if command in LONG:  # it is enough that the recipe or the model is found
        monkeypatch.setattr(LONG[command], _stop)
        with pytest.raises(StopError):
            main([command, own[kind], *COMMANDS[command]])
        return
    assert main([command, own[kind], *COMMANDS[command], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    if command == "evaluate":
        assert [mode["active_streams"] for mode in found["modes"]] == [4]
        total = 297 if kind == "shipped" else 128
        assert found["modes"][0]["total"] == total


class StopError(Exception):
    """Instead of training."""


def _stop(found, folder, *_, options=None, **__):
    if options is not None:  # an export keeps the recipe
        assert options.recipe["data"]["name"].startswith("digits")
    assert getattr(found, "num_streams", None) == 4 or found.model.num_streams == 4
    raise StopError


@pytest.mark.parametrize("kind", KINDS)
def test_the_server_and_compare_find_the_same_networks(names, monkeypatch, kind):
    place, own = names
    monkeypatch.chdir(place)
    assert find_weights(own[kind]).is_dir()
    config = find_config(own[kind])
    assert (config.num_streams, config.image_size) == (4, 8)
    assert find_recipe(own[kind]).data.name.startswith("digits")
    trained = kind in ("run", "saved model", "export")
    assert (config.width == 1) == (trained or kind == "shipped")


def test_a_folder_without_a_network_does_not_hide_a_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / RECIPE).mkdir()
    assert find_network(RECIPE) == RECIPE


@pytest.mark.parametrize("command", ["evaluate", "predict", "export", "serve"])
def test_a_recipe_without_weights_says_how_to_train_it(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    rest = {"predict": ["a.png"], "export": ["--out", "out"]}.get(command, [])
    assert main([command, RECIPE, *rest]) == 2
    assert f"train it (mimonets train {RECIPE})" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["cost", "bench", "recipes", "train", "evaluate", "serve"])
def test_a_name_that_nothing_has_is_refused_with_those_that_are_there(command, capsys):
    assert main([command, "digit"]) == 2
    error = capsys.readouterr().err
    assert "no recipe, no folder and no shipped network 'digit' (did you mean 'digits'?)" in error
    assert "ship with mimonets" in error


def test_a_network_whose_data_nobody_knows_is_evaluated_by_a_recipe(names, small_conv, capsys):
    from mimonets import save

    place, _ = names
    save(small_conv, place / "bare")
    assert main(["evaluate", str(place / "bare")]) == 2
    assert "does not say which recipe" in capsys.readouterr().err
    assert main(["evaluate", str(place / "bare"), "--which", "best"]) == 2
    assert "is no run" in capsys.readouterr().err


def test_mnist_networks_are_evaluated_offline(monkeypatch, capsys):
    monkeypatch.setattr(
        "mimonets.data.images.mnist.find_or_fetch",
        lambda *_: (_ for _ in ()).throw(ValueError("no")),
    )
    assert main(["evaluate", "mnist-n16", "--active-streams", "max", "--json"]) == 0
    printed = capsys.readouterr()
    assert "scikit-learn's digits stand in" in printed.err
    found = json.loads(printed.out)
    assert "not MNIST's" in found["data"]
    assert found["modes"][0]["total"] == 1797
    assert 0.84 < found["modes"][0]["accuracy"] < 0.9  # other scans than it was trained on
