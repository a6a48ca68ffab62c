import re
from collections.abc import Mapping
from typing import Literal

import pytest
import torch
import yaml

import mimonets as mn
from mimonets.cli.open_models import find_config
from mimonets.models.registry import model_class_for
from mimonets.recipes import (
    load_recipe,
    make_recipe,
    recipe_names,
)
from mimonets.recipes.families import find_recipe
from mimonets.recipes.loader import _as_type, _parser, _typed

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def test_every_recipe_says_what_it_is_and_makes_a_model():
    made = set()
    for name in recipe_names():
        recipe = load_recipe(name)
        assert recipe.summary.endswith("."), name
        assert model_class_for(recipe.model).kind == recipe.kind
        kind = "datamux" if recipe.kind.startswith("datamux") else recipe.kind
        if "cpu-gears" not in name:  # named by what they are for: big, small, widths ...
            assert kind in name or name.endswith("-cpu") or recipe.model.binding in name, name
        if recipe.model not in made:
            made.add(recipe.model)
            with torch.device("meta"):
                model_class_for(recipe.model)(recipe.model)
        # What is shown is complete: read as a file of its own it gives the same model.
        settings = yaml.load(recipe.as_yaml(), Loader=LOADER)
        assert make_recipe(recipe.name, recipe.summary, settings) == recipe


def test_names_mean_what_they_say():
    for name in recipe_names():
        recipe = load_recipe(name)
        data, *_ = name.split("-")
        streams = re.search(r"-n(\d+)", name)
        if streams and recipe.kind == "mimoconv":
            assert recipe.model.num_streams == int(streams[1])
        if "dynamic" in name:
            shares = {1: 0.2, 4: 0.8}
            if "tiles" in name or name.endswith("-ours") or name == "mnist-mimoconv-dynamic":
                shares = {1: 0.2, 2: 0.2, 4: 0.6}
            if name == "mnist-mimoconv-dynamic-n16":
                shares = {1: 0.1, 4: 0.2, 16: 0.7}
            assert recipe.train.mode_shares(recipe.model.num_streams) == pytest.approx(shares)
        if "curriculum" in name:
            assert recipe.train.curriculum == pytest.approx(1 / 6, rel=1e-3)
        grid = re.search(r"-(\d+)x(\d+)", name)
        if grid:
            assert recipe.model.grid == (int(grid[1]), int(grid[2]))
            extent = "+qkv" if "-qkv" in name else "+mlp" if "-mlp" in name else "attention"
            assert recipe.model.superpose.endswith(extent)
        if name.endswith("-wide"):
            deep = load_recipe(name.removesuffix("-wide")).model
            assert (recipe.model.depth, recipe.model.heads) == (1, deep.depth * deep.heads)
        if data in ("cifar10", "cifar100"):
            assert recipe.model.num_classes == int(data.removeprefix("cifar"))


def test_every_row_of_the_papers_tables_has_a_recipe():
    names = set(recipe_names())
    for data in ("cifar10", "cifar100"):
        for network in ("wideresnet", "wideisonet", *(f"mimoconv-{n}" for n in ("n1", "n2", "n4"))):
            assert f"{data}-{network}" in names
        assert f"{data}-mimoconv-dynamic" in names
    assert {f"mnist-mimoconv-n{n}" for n in (1, 2, 4, 8, 16)} <= names
    for task in ("listops", "text", "retrieval", "image", "pathfinder"):
        assert f"lra-{task}-transformer" in names
        for size in ("", "-wide"):
            assert f"lra-{task}-performer{size}" in names
            for variant in ("2x2", "2x2-mlp", "4x4", "4x4-curriculum", "4x4-mlp"):
                assert f"lra-{task}-mimoformer-{variant}{size}" in names
    for task in ("recall", "induction"):
        for network in ("transformer", "performer", "mimoformer-2x2", "mimoformer-2x2-dpfp"):
            assert f"{task}-{network}" in names


@pytest.mark.parametrize("task", ["recall", "induction"])
@pytest.mark.parametrize(
    "network", ["transformer", "performer", "mimoformer-2x2", "mimoformer-2x2-dpfp"]
)
def test_synthetic_tasks_keep_the_papers_sizes_and_the_training_of_their_source(task, network):
    ours, papers = load_recipe(f"{task}-{network}"), load_recipe(f"{task}-{network}-source")
    for recipe in (ours, papers):
        model, batch = recipe.model, (recipe.train.batch_size, recipe.train.per_stream)
        assert (model.depth, model.heads, model.dim, model.hidden_dim) == (2, 1, 32, 128)
        assert batch == (32, False)
        assert recipe.data.sizes is None
    assert papers.model.head_dim == 32
    assert getattr(papers.model, "features", "relu") == ("dpfp" if "dpfp" in network else "relu")
    told = papers.train
    assert (told.epochs, told.lr, told.weight_decay) == (400, 5e-4, 0.1)
    assert (told.exact, told.solo, papers.model.embedding_std) == (0, 0, 0.02)
    assert ours.train.epochs < told.epochs
    assert ours.train.exact + ours.train.solo < 0.5
    assert (papers.model.style, papers.model.dropout) == ("gpt2", 0.1)
    assert (told.warmup, told.betas, told.epsilon) == (0.1, (0.9, 0.999), 1e-8)
    assert told.decay_all
    last = 5e-5 if task == "induction" else 1e-8
    assert told.lr_range[2] == last


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("listops", (6, 8, 64, 512, 2048)),
        ("text", (6, 8, 64, 512, 2048)),
        ("retrieval", (4, 4, 32, 128, 512)),
        ("image", (3, 4, 64, 64, 128)),
        ("pathfinder", (4, 8, 128, 128, 128)),
    ],
)
def test_lra_models_have_the_sizes_of_the_papers_table(task, expected):
    config = load_recipe(f"lra-{task}-mimoformer-2x2").model
    found = (config.depth, config.heads, config.head_dim, config.dim, config.hidden_dim)
    assert found == expected
    assert config.num_features == 256


def test_overrides_are_typed():
    config = load_recipe(
        "cifar100-mimoconv-n4",
        ["model.width=2", "model.activation=relu", "model.trainable_keys=false"],
    ).model
    assert (config.width, config.activation, config.trainable_keys) == (2, "relu", False)


@pytest.mark.parametrize(
    ("overrides", "messages"),
    [
        (["model.widht=2"], ["unknown setting 'model.widht' (did you mean 'model.width'?)"]),
        (["modle.width=2"], ["unknown section 'modle' (did you mean 'model'?)"]),
        (["model.width=wide"], ["model.width: expected a int. Got value: wide"]),
        (["model.activation=gelu"], ["model.activation", "'relu', 'prelu', 'srelu'", "gelu"]),
        (["model.depth=12"], ["depth=12 does not split"]),
        (["width"], ["cannot read 'width': write section.setting=value"]),
        (["model.width=0"], ["width=0 must be an integer >= 1"]),
        (["model.kind=resnet"], ["model.kind='resnet' is not known", "mimoconv"]),
        (
            ["model.widht=2", "model.depth=12", "model.binding=xor", "oops"],
            ["'model.widht'", "depth=12", "binding='xor'", "'oops'"],
        ),
    ],
)
def test_every_mistake_is_reported_at_once(overrides, messages):
    with pytest.raises(ValueError, match="^cifar100-mimoconv-n4: ") as error:
        load_recipe("cifar100-mimoconv-n4", overrides)
    for message in messages:
        assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_name_that_is_a_number_may_be_written_as_one():
    assert load_recipe("digits-mimoconv-n4", ["train.precision=32"]).train.precision == "32"
    with pytest.raises(ValueError, match=r"train\.precision: expected a Literal"):
        load_recipe("digits-mimoconv-n4", ["train.precision=16"])


def test_an_unknown_recipe_gets_a_suggestion():
    with pytest.raises(ValueError, match="'cifar100-mimoconv-n4'.*mimonets recipes"):
        load_recipe("cifar100-mimoconv-n44")


def test_a_saved_model_is_as_good_as_a_recipe(tmp_path):
    config = mn.WideResNetConfig(depth=10, width=1)
    mn.save(mn.WideResNet(config), tmp_path)
    assert find_config(str(tmp_path)) == config
    with pytest.raises(ValueError, match="--set works with recipes only"):
        find_config(str(tmp_path), ["model.width=2"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("recall-mimoformer-n2", "recall-mimoformer-2x2"),
        ("lra-text-mimoformer-n4-mlp-wide", "lra-text-mimoformer-4x4-mlp-wide"),
    ],
)
def test_former_names_still_work(old, new):
    assert load_recipe(old, ["train.seed=5"]) == load_recipe(new, ["train.seed=5"])
    assert find_config(old) == load_recipe(new).model
    assert old not in recipe_names()


def test_datamux_carries_as_many_sequences_as_it_says():
    assert load_recipe("recall-datamux-n2").model.num_streams == 2


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "svhn"])
def test_image_recipes_train_the_authors_network(data):
    for name in recipe_names():
        if name.startswith(f"{data}-") and not re.search("-(cpu|map|regime-wideresnet)-", name):
            model = load_recipe(name).model
            assert (model.shortcut_norm, model.final_norm) == (True, False), name
    if data == "svhn":
        assert load_recipe("svhn-mimoconv-n4").augment.padding == 2


@pytest.mark.parametrize(
    "value",
    [
        "[1",
        "{a: b: c}",
        "!!python/object/apply:os.system [ls]",
        "'",
        "[" * 5000,
        "9" * 5000,
        "@",
        "&a [*a]",
    ],
)
def test_a_value_that_is_no_yaml_gets_a_sentence(value):
    with pytest.raises(ValueError, match="cannot read the value of model.width") as error:
        load_recipe("digits-mimoconv-n4", [f"model.width={value}"])
    assert len(str(error.value)) < 500


def test_a_number_that_no_float_can_hold_gets_a_sentence():
    with pytest.raises(ValueError, match="^digits-mimoconv-n4: ") as error:
        load_recipe("digits-mimoconv-n4", [f"train.mixup={'9' * 400}"])
    assert len(str(error.value)) < 500


def test_values_that_fit_as_they_are_become_what_jsonargparse_makes_of_them():
    one_of_each = {name.partition("-")[0] + load_recipe(name).kind: name for name in recipe_names()}
    for name in one_of_each.values():
        for section, settings in find_recipe(name)[2].items():
            config_class = type(getattr(load_recipe(name), section))
            settings = {key: value for key, value in settings.items() if key != "kind"}
            parsed = _parser(section, config_class).parse_object({section: settings})[section]
            assert repr(_typed(section, config_class, settings)) == repr(
                config_class(**{key: parsed[key] for key in settings})
            )


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, True),
        (int, 1.0),
        (int, "1"),
        (float, True),
        (float, "1e-3"),
        (float, 2**53 + 1),
        (bool, 1),
        (str, 1),
        (Literal["32", "bf16"], "16"),
        (int | None, "null"),
        (tuple[int, int], [1, 2, 3]),
        (tuple[int, ...], [1, 2.0]),
        (tuple[int, ...], "12"),
        (Mapping[int, float] | None, {"1": 0.5}),
    ],
)
def test_what_does_not_fit_as_it_is_is_not_guessed(hint, value):
    with pytest.raises(TypeError):
        _as_type(hint, value)


@pytest.mark.parametrize("kind", ["[1]", "{}", "null", "7"])
def test_a_kind_that_is_no_word_gets_a_sentence(kind):
    with pytest.raises(ValueError, match=r"model\.kind=.* is not known: choose from"):
        load_recipe("digits-mimoconv-n4", [f"model.kind={kind}"])


def test_sections_of_another_shape_get_a_sentence():
    with pytest.raises(ValueError, match="'data' must hold settings.*not 7"):
        make_recipe("x", "y", {"model": {"kind": "wideresnet"}, "data": 7})
    with pytest.raises(ValueError, match="model.kind=None is not known"):
        make_recipe("x", "y", {})


def test_an_unknown_setting_without_a_value_is_named_too():
    with pytest.raises(ValueError, match="unknown setting 'model.pool'"):
        load_recipe("mnist-datamux-n4", ["model.pool={}"])


def test_a_setting_that_is_gone_names_the_last_version_that_had_it():
    with pytest.raises(ValueError, match=r"train\.num_nodes is gone.*leave it out"):
        load_recipe("digits-mimoconv-n4", ["train.num_nodes=2"])
    with pytest.raises(ValueError, match=r"train\.start_lr is now part of train\.lr_ends"):
        load_recipe("digits-mimoconv-n4", ["train.start_lr=0.01"])


def test_files_may_be_in_a_folder_named_after_the_data(tmp_path):
    recipe = load_recipe("mnist-mimoconv-n4")
    assert recipe.with_data_dir(None) is recipe
    assert recipe.with_data_dir(tmp_path).data.dir == str(tmp_path)
    folder = tmp_path / "data \N{GRINNING FACE} 'x'"
    (folder / "mnist").mkdir(parents=True)
    assert recipe.with_data_dir(folder).data.dir == str(folder / "mnist")
    (tmp_path / "mnist").mkdir()
    assert recipe.with_data_dir(tmp_path).data.dir == str(tmp_path / "mnist")
