"""Recipes run from one call, on tiny stand-in data of the right format."""

import json
from dataclasses import replace

import pytest
import torch

import mimonets as mn
from mimonets.data import ImageSet, SequenceSet, Splits
from mimonets.models import DataMUXConvConfig, MIMOConvConfig, WideResNetConfig
from mimonets.recipes import execute, load_recipe, recipe_names
from mimonets.recipes.execute import (
    make_batches,
    make_model,
    make_train_batches,
    read_run,
    run_recipe,
    split_batches,
    taste,
)


def shrunk(recipe):
    """Keep what a recipe says about its method, and make everything small."""
    if isinstance(recipe.model, DataMUXConvConfig):
        model = recipe.model  # small already
    elif isinstance(recipe.model, WideResNetConfig):
        size = max(8, 4 * recipe.model.stem_stride)
        model = replace(recipe.model, depth=10, width=1, initial_width=1, image_size=size)
    else:
        small = {"max_length": 24, "depth": 1, "head_dim": 4, "dim": 4, "hidden_dim": 4}
        model = replace(recipe.model, **small, heads=2)
        if hasattr(model, "num_features"):
            model = replace(model, num_features=8)
    train = replace(recipe.train, steps=2, warmup=0.3, threads=1, recalibrate_batches=1)
    group = 4 if train.per_stream else max(4, getattr(model, "num_streams", 4))
    train = replace(train, batch_size=group)
    data = replace(recipe.data, crop=None, dir=None)
    return replace(recipe, model=model, data=data, train=train)


def stand_in(recipe):
    """Make data of the shape and type that the real loader gives."""
    generator = torch.Generator().manual_seed(0)
    model = recipe.model

    def images(count):
        shape = (count, model.in_channels, model.image_size, model.image_size)
        pixels = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        return ImageSet(pixels, torch.arange(count) % model.num_classes, model.num_classes, "tiny")

    def sequences(count):
        pair = (2,) if model.head == "pair" else ()
        tokens = torch.randint(model.vocab_size, (count, *pair, 24), generator=generator).int()
        lengths = torch.randint(1, 25, (count, *pair), generator=generator)
        classes = model.num_classes
        labels = torch.arange(count) % classes
        if model.head == "next_token":
            classes = model.vocab_size
            labels = torch.randint(classes, (count, 24), generator=generator)
        return SequenceSet(tokens, lengths, labels, model.vocab_size, classes, "tiny")

    make = images if hasattr(model, "image_size") else sequences
    return Splits(make(64), None, make(17))


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_runs_two_steps(name, tmp_path, monkeypatch):
    recipe = shrunk(load_recipe(name))
    monkeypatch.setattr(execute, "load_data", lambda config: stand_in(recipe))
    result = run_recipe(recipe, tmp_path / "run")
    assert result.steps == 2
    model = mn.load(tmp_path / "run" / "model")
    assert model.config == recipe.model
    assert read_run(tmp_path / "run") == recipe
    for mode, found in result.final.items():
        assert 1 <= mode <= model.num_streams
        assert 0 <= found["accuracy"] <= 1


def test_images_that_are_not_standardised_lie_between_0_and_1():
    recipe = shrunk(load_recipe("mnist-datamux-n2"))
    splits = stand_in(recipe)
    batches = make_train_batches(recipe, splits)
    for some in (batches, make_batches(splits.test, batches)):
        images, _ = next(iter(some))
        assert (float(images.min()), float(images.max())) == pytest.approx((0, 1), abs=0.01)
    with pytest.raises(ValueError, match="standardise=False means nothing for recall: leave it"):
        load_recipe("recall-transformer", ["data.standardise=false"])


def test_an_epoch_traverses_the_data_as_often_as_there_are_streams():
    recipe = shrunk(load_recipe("mnist-mimoconv-n4"))
    batches = make_train_batches(recipe, stand_in(recipe))
    assert len(batches) == 64 * 4 // (4 * 4)
    images, _ = next(batches.epoch(0))
    assert images.shape == (16, 1, 8, 8)
    assert batches.num_classes == 10


def test_the_seed_decides_the_weights_and_nothing_else_is_drawn():
    recipe = shrunk(load_recipe("mnist-mimoconv-n4"))
    before = torch.get_rng_state()
    one, two, other = (make_model(recipe.with_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one.classifier.weight, two.classifier.weight)
    assert not torch.equal(one.classifier.weight, other.classifier.weight)
    assert torch.equal(torch.get_rng_state(), before)


def test_dynamic_recipes_train_slow_and_fast_and_measure_the_rest(tmp_path, monkeypatch):
    recipe = shrunk(load_recipe("digits-mimoconv-dynamic"))
    recipe = replace(recipe, train=replace(recipe.train, steps=20))
    monkeypatch.setattr(execute, "load_data", lambda config: stand_in(recipe))
    run_recipe(recipe, tmp_path / "run")
    model = mn.load(tmp_path / "run" / "model")
    assert mn.layers.untrained_modes(model) == []


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_has_a_taste(name):
    recipe = taste(load_recipe(name))
    assert recipe.train.steps == 20
    assert recipe.data.limit <= 2000


def test_missing_splits_and_folders_are_named(tmp_path, monkeypatch):
    recipe = shrunk(load_recipe("digits-wideresnet"))
    monkeypatch.setattr(execute, "load_data", lambda config: stand_in(recipe))
    with pytest.raises(ValueError, match="digits has no validation data"):
        split_batches(recipe, "validation")
    with pytest.raises(ValueError, match="holds no recipe.yaml"):
        read_run(tmp_path)


def test_classes_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, monkeypatch):
    recipe = shrunk(load_recipe("cifar100-mimoconv-n4"))
    wrong = replace(recipe, model=replace(recipe.model, num_classes=10))
    monkeypatch.setattr(execute, "load_data", lambda config: stand_in(recipe))
    with pytest.raises(ValueError, match="data has 100 classes.*set model.num_classes=100"):
        run_recipe(wrong, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_results_are_plain_json(tmp_path, monkeypatch):
    recipe = shrunk(load_recipe("mnist-mimoconv-n2"))
    assert isinstance(recipe.model, MIMOConvConfig)
    monkeypatch.setattr(execute, "load_data", lambda config: stand_in(recipe))
    run_recipe(recipe, tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert set(result["final"]) == {"2"}
