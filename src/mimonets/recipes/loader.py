"""Turn the settings of a recipe into typed configs; every mistake gets a sentence."""

import json
from argparse import ArgumentError
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from mimonets._messages import did_you_mean, shorten
from mimonets.data import AugmentConfig, DataConfig
from mimonets.models import MODELS
from mimonets.recipes.families import find_recipe
from mimonets.training.config import LAST_VERSION_WITH_REMOVED, REMOVED, REPLACED, TrainConfig

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

SECTIONS: dict[str, type[Any] | None] = {
    "model": None,  # by its kind
    "data": DataConfig,
    "augment": AugmentConfig,  # images only
    "train": TrainConfig,
}

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times as fast, where it was built

WRONG_VALUE = (ArgumentError, ValueError, TypeError, OverflowError)  # what a config may raise


@dataclass(frozen=True)
class Recipe:
    """One experiment: its name, what it is about, and the configs in it."""

    name: str
    summary: str
    kind: str
    model: Any
    data: DataConfig
    augment: AugmentConfig | None
    train: TrainConfig

    def as_dict(self) -> dict[str, Any]:
        """Give everything as plain data, all settings spelt out."""
        sections = {
            "model": {"kind": self.kind, **asdict(self.model)},
            "data": asdict(self.data),
            "augment": None if self.augment is None else asdict(self.augment),
            "train": asdict(self.train),
        }
        return {"name": self.name, "summary": self.summary, **_plain(sections)}

    def as_yaml(self) -> str:
        """Show the recipe as a file of its own, all settings spelt out, with how to use it."""
        everything = self.as_dict()
        settings = {name: everything[name] for name in SECTIONS if everything[name] is not None}
        return (
            f"# {self.summary}\n"
            f"#   run     mimonets train {self.name}\n"
            f"#   taste   mimonets train {self.name} --taste\n"
            f"#   cost    mimonets cost {self.name}\n"
            f"#   speed   mimonets bench {self.name}\n"
            f"#   expect  docs/results.md, for what has been run\n"
        ) + yaml.dump(settings, Dumper=DUMPER, sort_keys=False)

    def with_data_dir(self, data_dir: str | Path | None) -> "Recipe":
        """Give the same experiment with its files there; see :func:`find_data_dir`."""
        if data_dir is None:
            return self
        return replace(self, data=replace(self.data, dir=find_data_dir(data_dir, self.data.name)))

    def without_paths(self) -> "Recipe":
        """Give the same experiment without folders of this machine."""
        data, train = replace(self.data, dir=None), replace(self.train, teacher=None)
        return replace(self, data=data, train=train)

    def with_seed(self, seed: int) -> "Recipe":
        """Give the same experiment with another seed for weights and batches."""
        return replace(self, train=replace(self.train, seed=seed))


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply overrides such as ``model.width=1``.

    Every mistake is reported at once, a misspelt setting with the one that was probably meant.

    >>> load_recipe("mnist-mimoconv-n16", ["model.num_streams=8"]).model.num_streams
    8
    """
    return make_recipe(*find_recipe(name), overrides)


def make_recipe(
    name: str, summary: str, settings: dict[str, Any], overrides: Sequence[str] = ()
) -> Recipe:
    """Turn settings by section into a recipe of typed configs."""
    settings, problems = _sections(settings)
    problems += _apply_overrides(settings, overrides)
    problems += _unknown("section", settings, list(SECTIONS))
    kind = settings.setdefault("model", {}).pop("kind", None)
    classes = dict(SECTIONS)
    if isinstance(kind, str) and kind in MODELS:
        classes["model"] = MODELS[kind].config_class
    else:
        problems.append(
            f"model.kind={shorten(repr(kind))} is not known: choose from {', '.join(MODELS)}"
        )
    configs: dict[str, Any] = {}
    for section, config_class in classes.items():
        if config_class is None or (section == "augment" and section not in settings):
            continue
        values = settings.get(section, {})
        try:
            configs[section] = _typed(section, config_class, values)
        except WRONG_VALUE:
            problems += _setting_problems(section, config_class, values)
    if problems:
        raise ValueError(f"{name}: {'; '.join(problems)}.")
    return Recipe(name, summary, kind, **{"augment": None, **configs})


def find_data_dir(data_dir: str | Path, dataset: str) -> str:
    """Find the files of a data set: in the folder itself, or in one in it named after the set."""
    own = Path(data_dir) / dataset
    return str(own if own.is_dir() else data_dir)


def _sections(settings: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Copy what was read by section, and say which sections are none."""
    good = {
        section: {str(name): value for name, value in values.items()}
        for section, values in settings.items()
        if isinstance(values, Mapping)
    }
    problems = [
        f"section {section!r} must hold settings and values, not {shorten(repr(values), 40)}"
        for section, values in settings.items()
        if values is not None and not isinstance(values, Mapping)
    ]
    return good, problems


def _apply_overrides(settings: dict[str, Any], overrides: Sequence[str]) -> list[str]:
    problems = []
    for override in overrides:
        path, equals, value = override.partition("=")
        section, dot, name = path.partition(".")
        if not equals or not dot or not name:
            problems.append(
                f"cannot read {shorten(repr(override))}: write section.setting=value, as in "
                f"model.width=1"
            )
            continue
        try:
            settings.setdefault(section, {})[name] = _without_circles(yaml.safe_load(value))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            reason = getattr(error, "problem", None) or shorten(str(error) or "it is too deep")
            problems.append(
                f"cannot read the value of {section}.{name}, {shorten(repr(value))}: {reason}; "
                f"write it as in YAML, such as 2, 0.5, relu or [2, 2]"
            )
    return problems


def _without_circles(value: Any) -> Any:
    """Give the value back; raises ValueError if it holds itself, as YAML's ``&a [*a]`` does."""
    json.dumps(value, default=str, skipkeys=True)
    return value


def _setting_problems(section: str, config_class: Any, settings: dict[str, Any]) -> list[str]:
    """Say everything that is wrong with a section, setting by setting."""
    known = [field.name for field in fields(config_class)]
    removed = settings.keys() & REMOVED if section == "train" else set()
    problems = [
        f"{section}.{name} is gone: mimonets {LAST_VERSION_WITH_REMOVED} is the last version with "
        f"this setting, leave it out"
        for name in sorted(removed)
    ]
    replaced = settings.keys() & REPLACED if section == "train" else set()
    problems += [f"train.{name} is now part of train.{REPLACED[name]}" for name in sorted(replaced)]
    unknown = [name for name in settings if name not in removed | replaced]
    problems += _unknown("setting", unknown, known, prefix=f"{section}.")
    settings, good = _as_text(config_class, settings), {}
    for name in sorted(settings.keys() & set(known)):
        if settings[name] is None and not _may_be_null(config_class, name):
            problems.append(f"{section}.{name} has no value: write it as in {section}.{name}=VALUE")
            continue
        try:
            _parser(section, config_class).parse_object({section: {name: settings[name]}})
            good[name] = settings[name]
        except WRONG_VALUE as error:
            # jsonargparse says: Parser key "model.width":\n  Expected a <class 'int'>. Got ...
            reason = str(error).partition("\n")[2].strip() or str(error)
            for clutter in ("typing.", "<class '", "'>"):
                reason = reason.replace(clutter, "")
            reason = shorten(reason, most=300)
            problems.append(f"{section}.{name}: {reason[:1].lower()}{reason[1:].rstrip('.')}")
    try:
        _typed(section, config_class, good)
    except WRONG_VALUE as error:
        words = str(error)
        problems.append(shorten(words.partition(": ")[2] or words, most=2000).rstrip("."))
    return problems


def _as_text(config_class: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Write numbers as text where names are wanted: train.precision=32 means "32"."""
    hints = _hints(config_class)
    return {
        name: str(value)
        if type(value) is int and str(value) in get_args(hints.get(name))
        else value
        for name, value in settings.items()
    }


def _typed(section: str, config_class: Any, settings: dict[str, Any]) -> Any:
    """Turn what YAML read into the types of the fields, and those into a config.

    Nearly every value fits as it is. The rest, such as ``1e-3``, which YAML takes for text, and
    everything wrong is left to jsonargparse, which takes 5 ms for each section.
    """
    settings = _as_text(config_class, settings)
    for name, value in settings.items():
        if value is None and not _may_be_null(config_class, name):  # jsonargparse lets it pass
            raise ValueError(f"{section}: {name} has no value")
    unknown = settings.keys() - {field.name for field in fields(config_class)}
    if unknown:  # jsonargparse drops an unknown setting whose value is empty
        raise ValueError(f"unknown setting {min(unknown)!r}")
    hints = _hints(config_class)
    typed, rest = {}, {}
    for name, value in settings.items():
        try:
            typed[name] = _as_type(hints[name], value)
        except TypeError:
            rest[name] = value
    if rest:
        parsed = _parser(section, config_class).parse_object({section: rest})[section]
        typed |= {name: parsed[name] for name in rest}
    return config_class(**typed)


def _as_type(hint: Any, value: Any) -> Any:
    """Give a value of this type where nothing has to be guessed; else raises TypeError."""
    kind, inner = get_origin(hint), get_args(hint)
    if hint in (int, bool, str, float) and type(value) is hint:
        return value
    if hint is float and type(value) is int and abs(value) <= 2**53:
        return float(value)
    if kind is Literal and type(value) is str and value in inner:
        return value
    if kind in (Union, UnionType) and len(inner) == 2 and inner[1] is NoneType:
        return None if value is None else _as_type(inner[0], value)
    if kind is tuple and type(value) in (list, tuple):
        hints = inner[:1] * len(value) if inner[1:] == (...,) else inner
        if len(hints) == len(value):
            return tuple(map(_as_type, hints, value))
    if kind is Mapping and type(value) is dict:
        return {_as_type(inner[0], key): _as_type(inner[1], value[key]) for key in value}
    raise TypeError(f"{value!r} is no {hint}")


def _may_be_null(config_class: Any, name: str) -> bool:
    hint = _hints(config_class).get(name)
    return hint is None or NoneType in get_args(hint)


@cache
def _hints(config_class: Any) -> dict[str, Any]:
    return get_type_hints(config_class)


@cache
def _parser(section: str, config_class: Any) -> "ArgumentParser":
    from jsonargparse import ArgumentParser  # 0.2 s, and seldom needed

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(config_class, section)
    return parser


def _unknown(
    what: str, settings: Iterable[str], known: Sequence[str], prefix: str = ""
) -> list[str]:
    return [
        f"unknown {what} {prefix + name!r}{did_you_mean(name, known, prefix)}"
        for name in settings
        if name not in known
    ]


def _plain(value: Any) -> Any:
    """Turn tuples into lists, as JSON and YAML have them."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple | list) else value
