"""Recipes run from one call, on tiny stand-in data of the right format."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn

import mimonets as mn
from mimonets.data import (
    DataConfig,
    ImageBatches,
    ImageSet,
    SequenceSet,
    Splits,
    load_data,
    registry,
)
from mimonets.models import DataMUXConvConfig, MIMOConvConfig, WideResNetConfig
from mimonets.models.registry import MODELS, model_class_for
from mimonets.recipes import execute, load_recipe, recipe_names
from mimonets.recipes.execute import (
    describe_inputs,
    make_batches,
    make_model,
    make_train_batches,
    measure_run,
    read_run,
    run_recipe,
    split_batches,
    taste,
)
from mimonets.training import TrainConfig
from mimonets.training.checks import image_problems
from mimonets.training.identity import Identity
from mimonets.training.run_folder import choose_model


def use_data(monkeypatch, load):
    """Let training and measuring load this in place of the data."""
    monkeypatch.setattr(execute, "load_data", load)
    monkeypatch.setattr(registry, "load_data", load)


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


# Every kind of model, data and way of training at least once; test_loader builds all of them.
REPRESENTATIVES = (
    *("cifar10-wideresnet", "cifar100-wideisonet", "cifar100-mimoconv-n4", "svhn-mimoconv-n2"),
    *("cifar10-mimoconv-dynamic", "cifar10-cpu-mimoconv-n4-ours", "digits-mimoconv-dynamic"),
    *("mnist-mimoconv-n16", "mnist-mimoconv-n16-ours", "mnist-datamux-n1", "mnist-datamux-n4"),
    *("mnist-tiles-n16", "cifar10-cpu-map-late-tiles-gears-n4"),
    *("cifar10-cpu-map-gearedresnet-widths", "cifar10-cpu-map-gearedresnet-resolutions"),
    *("lra-image-transformer", "lra-text-performer-wide", "lra-text-cpu", "lra-image-cpu"),
    *("lra-listops-mimoformer-2x2", "lra-pathfinder-mimoformer-4x4-mlp"),
    *("lra-retrieval-mimoformer-2x2-qkv", "lra-retrieval-mimoformer-4x4-curriculum"),
    *("lra-listops-datamux-n2", "recall-mimoformer-2x2", "recall-datamux-n2-slots"),
    *("recall-performer-source", "induction-transformer", "induction-mimoformer-2x2-dpfp-source"),
)


def test_the_representatives_are_of_every_kind():
    kinds = {load_recipe(name).kind for name in REPRESENTATIVES}
    assert kinds == set(MODELS)
    families = {name.split("-")[0] for name in recipe_names()}
    assert {name.split("-")[0] for name in REPRESENTATIVES} == families


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_recipes_of_every_kind_run_two_steps(name, tmp_path, monkeypatch):
    recipe = shrunk(load_recipe(name))
    use_data(monkeypatch, lambda config: stand_in(recipe))
    result = run_recipe(recipe, tmp_path / "run")
    assert result.steps == 2
    model = mn.load(tmp_path / "run" / "model")
    assert model.config == recipe.model
    assert read_run(tmp_path / "run") == recipe
    assert (result.final, result.keep) == ({}, "last")  # the stand-in holds nothing out


def test_images_that_are_not_standardised_lie_between_0_and_1():
    recipe = shrunk(load_recipe("mnist-datamux-n2"))
    splits = stand_in(recipe)
    batches = make_train_batches(recipe, splits)
    for some in (batches, make_batches(splits.test, batches)):
        images, _ = next(iter(some))
        assert (float(images.min()), float(images.max())) == pytest.approx((0, 1), abs=0.01)
    with pytest.raises(ValueError, match="standardise=False.*recall: leave it"):
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
    use_data(monkeypatch, lambda config: stand_in(recipe))
    run_recipe(recipe, tmp_path / "run")
    model = mn.load(tmp_path / "run" / "model")
    assert mn.layers.untrained_modes(model) == []


@pytest.mark.slow
def test_every_recipe_has_a_taste_that_a_laptop_can_run():
    """A taste keeps the method and shrinks what takes time: parameters times inputs in all."""
    for name in recipe_names():
        recipe = load_recipe(name)
        small = taste(recipe)
        with torch.device("meta"):
            whole, little = (model_class_for(r.model)(r.model) for r in (recipe, small))
        streams = little.num_streams if small.train.per_stream else 1
        inputs = small.train.steps * small.train.batch_size * streams
        assert inputs * sum(p.numel() for p in little.parameters()) < 5e10, name
        assert little.num_streams == whole.num_streams, name
        assert small.train.mode_shares(whole.num_streams) == recipe.train.mode_shares(
            whole.num_streams
        ), name
        assert small.data.name == recipe.data.name, name
        assert small.data.limit <= 2000, name


def test_a_taste_runs(tmp_path):
    recipe = taste(load_recipe("digits-mimoconv-dynamic"))
    assert run_recipe(recipe, tmp_path / "run").steps == 20


def test_missing_splits_and_folders_are_named(tmp_path, monkeypatch):
    recipe = shrunk(load_recipe("digits-wideresnet"))
    use_data(monkeypatch, lambda config: stand_in(recipe))
    with pytest.raises(ValueError, match="digits has no validation data"):
        split_batches(recipe.data, "validation")
    with pytest.raises(ValueError, match="holds no recipe.yaml"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((1, 8, 8), []),
        ((3, 8, 8), ["Images have 3 channels, and the model takes 1: set model.in_channels=3."]),
        (
            (1, 9, 9),
            ["Images are 9x9, and the model is for 8x8: set model.image_size=9, or crop them."],
        ),
        (
            (1, 9, 7),
            ["Images are 9x7, and the model is for 8x8: crop them to a square (data.crop)."],
        ),
        (None, []),
    ],
)
def test_images_of_another_size_are_refused_since_costs_would_be_wrong(shape, wanted):
    settings = load_recipe("digits-wideresnet").model
    assert image_problems(settings, shape) == wanted


def test_classes_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, monkeypatch):
    recipe = shrunk(load_recipe("cifar100-mimoconv-n4"))
    wrong = replace(recipe, model=replace(recipe.model, num_classes=10))
    use_data(monkeypatch, lambda config: stand_in(recipe))
    with pytest.raises(ValueError, match="100 classes.*model.num_classes=100"):
        run_recipe(wrong, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_results_are_plain_json(tmp_path, monkeypatch):
    recipe = shrunk(load_recipe("mnist-mimoconv-n2"))
    assert isinstance(recipe.model, MIMOConvConfig)
    use_data(monkeypatch, lambda config: stand_in(recipe))
    run_recipe(recipe, tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["final"], result["keep"]) == ({}, "last")
    assert result["training"]["loss"] > 0


class Untouchable:
    """Data that nothing may be asked of."""

    def __getattr__(self, name):
        raise AssertionError(f"training asked the test data for {name}")

    def __len__(self):
        raise AssertionError("training asked for the number of test items")


@pytest.mark.parametrize("holds_out", [False, True])
def test_training_never_reads_the_test_data(tmp_path, monkeypatch, holds_out):
    recipe = shrunk(load_recipe("digits-mimoconv-dynamic"))
    recipe = replace(recipe, train=replace(recipe.train, steps=None, epochs=2, evaluate_every=1))
    splits = stand_in(recipe)
    validation = splits.test if holds_out else None
    guarded = Splits(splits.train, validation, Untouchable())
    use_data(monkeypatch, lambda config: guarded)
    result = run_recipe(recipe, tmp_path / "run")
    assert result.keep == ("best" if holds_out else "last")
    assert (tmp_path / "run/best").exists() == holds_out
    assert all(("validation" in row) == holds_out for row in result.history)


def finished_run(folder, monkeypatch, *, holds_out=True, **settings):
    recipe = shrunk(load_recipe("digits-mimoconv-n4"))
    recipe = replace(recipe, train=replace(recipe.train, **settings))
    splits = stand_in(recipe)
    splits = Splits(splits.train, splits.test if holds_out else None, splits.test)
    use_data(monkeypatch, lambda config: splits)
    return recipe, run_recipe(recipe, folder)


def test_what_is_measured_is_what_the_run_kept(tmp_path, monkeypatch):
    for keep, wanted in ((None, "best"), ("best", "best"), ("last", "last")):
        folder = tmp_path / str(keep)
        _, result = finished_run(folder, monkeypatch, keep=keep)
        assert choose_model(folder) == (wanted, result.model_dir)
        assert choose_model(folder, "last") == ("last", folder / "model")
        measured = measure_run(folder, "test", [4])
        named = measure_run(folder, "test", [4], which=wanted, device="cpu")
        assert measured == named
    _, result = finished_run(tmp_path / "none", monkeypatch, holds_out=False)
    assert choose_model(tmp_path / "none") == ("last", tmp_path / "none/model")
    with pytest.raises(ValueError, match="no best model.*no validation data"):
        measure_run(tmp_path / "none", "test", which="best")
    with pytest.raises(ValueError, match="no model 'first': choose best or last"):
        measure_run(tmp_path / "none", "test", which="first")


def test_runs_of_version_0_1_0_are_measured_as_they_were(tmp_path, monkeypatch):
    finished_run(tmp_path / "run", monkeypatch)
    path = tmp_path / "run/result.json"
    new = json.loads(path.read_text())
    old = {name: new[name] for name in ("final", "steps", "skipped", "not_finite")}
    path.write_text(json.dumps(old))
    assert choose_model(tmp_path / "run")[0] == "last"
    assert choose_model(tmp_path / "run", "best")[0] == "best"
    assert measure_run(tmp_path / "run", "test", [4])[0][1].total == 17


def test_an_interrupted_run_offers_its_best_model(tmp_path, monkeypatch):
    finished_run(tmp_path / "run", monkeypatch)
    shutil.rmtree(tmp_path / "run/model")
    (tmp_path / "run/result.json").unlink()
    with pytest.raises(ValueError, match="has not finished: resume it .*--which best"):
        measure_run(tmp_path / "run", "test")
    assert measure_run(tmp_path / "run", "test", [4], which="best")[0][1].total == 17
    shutil.rmtree(tmp_path / "run/best")
    with pytest.raises(ValueError, match="has not finished: .* it has no model yet"):
        measure_run(tmp_path / "run", "test")


def test_a_finished_run_comes_back_for_its_own_recipe_only(tmp_path, monkeypatch):
    recipe, result = finished_run(tmp_path / "run", monkeypatch)
    use_data(monkeypatch, None)  # nothing is loaded
    again = run_recipe(recipe, tmp_path / "run", resume=True)
    assert again == result
    other = replace(recipe, train=replace(recipe.train, lr=0.01))
    with pytest.raises(ValueError, match="was started with another recipe: .*train.lr"):
        run_recipe(other, tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="already holds a run"):
        run_recipe(recipe, tmp_path / "run")
    kept = {"best": "last", "last": "best"}[result.keep]
    other = replace(recipe, train=replace(recipe.train, keep=kept))
    with pytest.raises(ValueError, match=f"its {result.keep} model.*--which {kept}"):
        run_recipe(other, tmp_path / "run", resume=True)


def test_data_that_a_folder_is_may_not_change_on_the_way(tmp_path):
    identities = {}
    for name, folder in (("npz", "a"), ("npz", "b"), ("cifar10", "a"), ("cifar10", "b")):
        data = DataConfig(name=name, dir=str(tmp_path / folder))
        identities[name, folder] = Identity.of(nn.Linear(1, 1), TrainConfig(), {"data": data})
    for name, refused in (("npz", True), ("cifar10", False)):
        first, other = identities[name, "a"], identities[name, "b"]
        with pytest.raises(ValueError, match=r"data\.dir") if refused else nullcontext():
            other.check(first.settings, tmp_path)


def test_a_model_of_images_does_not_train_on_sequences(tmp_path):
    recipe = load_recipe("digits-mimoconv-n4", ["data.name=recall"])
    with pytest.raises(ValueError, match="mimoconv.*images.*recall.*token ids"):
        run_recipe(recipe, tmp_path / "run")


@pytest.mark.parametrize(
    "text", ["", "[]", "model: 3", "model: {kind: mimoconv}\ntrain: {}\ndata: [1]", "a: b: c"]
)
def test_a_damaged_recipe_gets_one_sentence(tmp_path, text):
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(ValueError, match="recipe.yaml") as error:
        read_run(tmp_path)
    assert "\n" not in str(error.value)


def test_a_device_that_is_not_there_gets_one_sentence(tmp_path, monkeypatch):
    finished_run(tmp_path / "run", monkeypatch)
    for name, message in (("foo", "no kind of device 'foo'"), ("cuda:7", "no device 'cuda:7'")):
        with pytest.raises(ValueError, match=message):
            measure_run(tmp_path / "run", "test", device=name)


def test_a_model_knows_its_inputs(tmp_path):
    recipe = shrunk(load_recipe("digits-mimoconv-n4"))
    batches = make_train_batches(recipe, stand_in(recipe))
    spec = describe_inputs(recipe, batches)
    raw = batches.data.images
    found = torch.from_numpy(spec.prepare(raw.numpy()))
    wanted = ImageBatches(batches.data, 64, statistics=batches.statistics)
    assert torch.equal(found, next(iter(wanted))[0])
    assert (spec.kind, spec.shape, spec.original) == ("image", (1, 8, 8), (8, 8))
    recipe = shrunk(load_recipe("recall-transformer"))
    spec = describe_inputs(recipe, make_train_batches(recipe, stand_in(recipe)))
    assert (spec.kind, spec.shape, spec.vocab_size) == ("tokens", (24,), 20)


def test_a_trained_model_is_saved_with_its_inputs_and_measured_by_them(tmp_path, monkeypatch):
    recipe, result = finished_run(tmp_path / "run", monkeypatch)
    splits = execute.load_data(recipe.data)
    batches = make_train_batches(recipe, splits)
    spec = mn.load(result.model_dir).input_spec
    assert spec == describe_inputs(recipe, batches)
    found, wanted = (
        split_batches(recipe.data, "test", spec=spec),
        split_batches(recipe.data, "test"),
    )
    assert torch.equal(next(iter(found))[0], next(iter(wanted))[0])
    measured = measure_run(tmp_path / "run", "test", [4])
    # Other training data change nothing: how inputs are standardised is the model's own.
    bright = replace(splits.train, images=splits.train.images // 2 + 128)
    changed = Splits(bright, splits.validation, splits.test)
    use_data(monkeypatch, lambda config: changed)
    assert measure_run(tmp_path / "run", "test", [4]) == measured


def test_a_crop_is_described_with_the_size_before_it():
    data = DataConfig(name="digits", crop=6)
    recipe = load_recipe("digits-mimoconv-n4", ["data.crop=6", "model.image_size=6"])
    spec = describe_inputs(recipe, make_train_batches(recipe, load_data(data)))
    assert (spec.shape, spec.crop, spec.original) == ((1, 6, 6), 6, (8, 8))
    assert spec.labels == tuple("0123456789")


def test_a_network_that_memory_does_not_hold_is_refused_before_it_is_built(monkeypatch):
    recipe = load_recipe("mnist-mimoconv-n4", ["model.width=1000000"])
    with pytest.raises(ValueError, match=r"mimoconv take .* GB, and .* are free: choose a smaller"):
        make_model(recipe)
    monkeypatch.setattr(execute, "free_memory", lambda: None)  # not known: it is tried
    monkeypatch.setattr(execute, "model_class_for", lambda config: lambda config: nn.Linear(1, 1))
    assert isinstance(make_model(recipe), nn.Linear)
