"""Make a model by its name: a shipped one, a recipe's, or a kind of network with its defaults."""

from dataclasses import fields, replace
from typing import Any

from mimonets._device import choose_device
from mimonets._messages import did_you_mean
from mimonets.checkpoints import load, read_config
from mimonets.checkpoints.shipped import pretrained_folder, pretrained_names
from mimonets.models import MODELS, Model
from mimonets.models.registry import model_class_for


def create(name: str, pretrained: bool = False, *, device: str = "cpu", **overrides: Any) -> Model:
    """Make a model by name, with trained weights that ship with the package or with random ones.

    Args:
        name: a shipped model (see :func:`list_models`), a recipe such as ``cifar10-mimoconv-n2``,
            or a kind of network such as ``mimoconv``.
        pretrained: load the shipped weights, in evaluation mode.
        device: where the model is to be.
        **overrides: settings of the config that differ; only without trained weights.

    >>> create("mimoconv", depth=10, width=1, num_streams=2).title
    'MIMOConv-10-1 (N=2)'
    """
    if pretrained:
        if overrides:
            raise ValueError(
                f"Trained weights fit their own config only: leave {', '.join(overrides)} out, or "
                f"set pretrained=False."
            )
        model: Model = load(pretrained_folder(name), device=device)
        return model
    place = choose_device(device)
    config = _config_of(name)
    known = [field.name for field in fields(config)]
    for setting in overrides:
        if setting not in known:
            raise ValueError(
                f"{type(config).__name__} has no setting {setting!r}{did_you_mean(setting, known)}."
            )
    config = replace(config, **overrides)
    return model_class_for(config)(config).to(place)


def list_models(pretrained: bool = True) -> list[str]:
    """List the models that ship with trained weights; or all names that :func:`create` knows."""
    if pretrained:
        return pretrained_names()
    return sorted({*pretrained_names(), *MODELS, *_recipe_names()})


def _config_of(name: str) -> Any:
    if name in pretrained_names():
        return read_config(pretrained_folder(name))
    if name in MODELS:
        return MODELS[name].config_class()
    if name not in _recipe_names():
        known = list_models(pretrained=False)
        raise ValueError(
            f"There is no model {name!r}{did_you_mean(name, known)}: "
            f"mimonets.list_models(pretrained=False) lists all."
        )
    from mimonets.recipes import load_recipe

    return load_recipe(name).model


def _recipe_names() -> list[str]:
    """List the recipes; none where the libraries that read them are not installed."""
    try:
        from mimonets.recipes import recipe_names
    except ImportError:
        return []
    return recipe_names()
