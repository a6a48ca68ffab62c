import pytest

import mimonets as mn
from mimonets.models.registry import model_class_for
from mimonets.recipes import load_recipe, model_config, recipe_names


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_says_what_it_is_and_makes_a_model(name):
    recipe = load_recipe(name)
    first, *header = [line for line in recipe.text.splitlines() if line.startswith("#")]
    assert first.endswith(".")
    assert f"mimonets cost {name}" in recipe.text
    assert any("expect" in line for line in header)
    data, model, *variant = name.split("-")
    assert model_class_for(recipe.model).kind == model
    assert recipe.model.num_classes == (100 if data == "cifar100" else 10)
    if variant and variant[0].startswith("n"):
        assert recipe.model.num_streams == int(variant[0][1:])


def test_recipes_are_listed_with_numbers_in_order():
    names = recipe_names()
    assert names.index("mnist-mimoconv-n8") < names.index("mnist-mimoconv-n16")
    assert {"cifar100-wideresnet", "cifar100-mimoconv-n4", "cifar100-mimoconv-dynamic"} <= set(
        names
    )


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
        (["model.kind=resnet"], ["model.kind='resnet' is not known", "mimoconv"]),
        (
            ["model.widht=2", "model.depth=12", "model.binding=xor", "oops"],
            ["'model.widht'", "depth=12", "model.binding", "'oops'"],
        ),
    ],
)
def test_every_mistake_is_reported_at_once(overrides, messages):
    with pytest.raises(ValueError, match="^cifar100-mimoconv-n4: ") as error:
        load_recipe("cifar100-mimoconv-n4", overrides)
    for message in messages:
        assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_recipe_gets_a_suggestion():
    with pytest.raises(ValueError, match="did you mean 'cifar100-mimoconv-n4'.*mimonets recipes"):
        load_recipe("cifar100-mimoconv-n44")


def test_a_saved_model_is_as_good_as_a_recipe(tmp_path):
    config = mn.WideResNetConfig(depth=10, width=1)
    mn.save(mn.WideResNet(config), tmp_path)
    assert model_config(str(tmp_path)) == config
    with pytest.raises(ValueError, match="--set works with recipes only"):
        model_config(str(tmp_path), ["model.width=2"])
