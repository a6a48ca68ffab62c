"""Experiments that train: which recipes, with which seeds, and what the paper got.

A file in ``plans/`` is one experiment; a new file is found by itself. Its ``trials`` are recipes
with changes, their ``paper`` values accuracies in percent, a mean or ``[mean, deviation]`` by
number of active streams. A ``teacher`` is the name of an earlier trial: that trial's network, of
the same seed, teaches. A trial whose code is gone names the last commit that has it as ``removed``:
its recorded runs stay in the result, and it is not trained. ``averages`` are over all rows whose
titles begin with ``over``, where * stands for anything; ``differences`` are the points by which the
row titled ``of``, a trial or an average, lies above the one titled ``from``. In plots, rows of a
``group`` form a line, groups "a" and "a + b" share a colour, and every ``variant`` has a panel.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import yaml

from mimonets._messages import did_you_mean, shorten
from mimonets._operating_point import OperatingPoint, stream_points
from mimonets.models import find_point, operating_points
from mimonets.recipes import Recipe, load_recipe
from mimonets.recipes.families import former_names
from mimonets.training.identity import FREE

RUNS = Path("runs/reproduce")  # where runs are kept

Value = tuple[float, float | None]  # mean and deviation


@dataclass(frozen=True)
class Trial:
    """One recipe, with changes, to be trained with several seeds."""

    name: str  # of its folder: the recipe's, and the changes if there are any
    title: str  # as in the paper
    recipe: str
    settings: tuple[str, ...] = ()  # such as train.epochs=10
    seeds: tuple[int, ...] = (0,)
    only_modes: tuple[int, ...] | None = None  # active streams to test; None: all streams busy
    paper: Mapping[int, Value] = field(default_factory=dict)  # by mode
    group: str = ""  # the line it belongs to in a plot
    variant: str = ""  # such as how long it is trained: a panel of its own in a plot
    our_recipe: bool = False  # not the paper's recipe
    scaled_down: bool = False
    note: str = ""
    teacher: str = ""  # name of the trial whose network, of the same seed, teaches this one
    removed: str = ""  # the last commit that can train it, if this one cannot

    @cached_property
    def points(self) -> tuple[OperatingPoint, ...]:
        """Operating points to test: by default those with the most inputs per pass."""
        if self.removed:  # there is no network to ask
            modes = self.only_modes or (1,)
            return tuple(p for p in stream_points(max(modes)) if p.number in modes)
        network = self.load(0).model
        if self.only_modes is not None:
            return tuple(find_point(network, mode) for mode in self.only_modes)
        every = operating_points(network)
        return tuple(p for p in every if p.inputs_per_pass == every[-1].inputs_per_pass)

    @property
    def modes(self) -> tuple[int, ...]:
        """Numbers of the operating points to test."""
        return tuple(point.number for point in self.points)

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, and those that its runs had when the recipe was named otherwise."""
        changes = self.name.removeprefix(self.recipe)
        return (self.name, *(old + changes for old in former_names(self.recipe)))

    def load(self, seed: int, more: tuple[str, ...] = ()) -> Recipe:
        """Read the recipe, with the changes and the seed."""
        return load_recipe(self.recipe, [*self.settings, *more]).with_seed(seed)

    def command(self, seed: int, runs: Path = RUNS, data_dir: Path | None = None) -> str:
        """Say how to train one run by hand, into the folder ``mimonets reproduce`` looks in."""
        settings = [*self.settings, *([f"train.seed={seed}"] if seed else [])]
        if self.teacher:
            settings.append(f"train.teacher={runs / self.teacher / f'seed-{seed}' / 'model'}")
        words = ["mimonets", "train", self.recipe]
        words += [word for setting in settings for word in ("--set", setting)]
        words += [] if data_dir is None else ["--data-dir", str(data_dir)]
        return shlex.join([*words, "--out", str(runs / self.name / f"seed-{seed}"), "--resume"])

    def changed(self, settings: Sequence[str]) -> "Trial":
        """Train with other settings, in folders of its own if they change what comes out."""
        added = name_changes([one for one in settings if changes_the_run(one)])
        return replace(
            self,
            name=self.name + added,
            teacher=self.teacher and self.teacher + added,
            settings=(*self.settings, *settings),
        )

    def scaled(self, factor: float) -> "Trial":
        """Train for a fraction of the epochs and steps, in folders of its own."""
        if self.removed:
            return replace(self, name=f"{self.name},scale={factor:g}", scaled_down=True)
        train = self.load(0).train
        shorter = {"epochs": train.epochs, "steps": train.steps}
        if train.warmup >= 1:  # in steps; else it is a fraction of them
            shorter["warmup"] = int(train.warmup)
        settings = [
            f"train.{name}={max(1, round(value * factor))}"
            for name, value in shorter.items()
            if value is not None
        ]
        return replace(
            self,
            name=f"{self.name},scale={factor:g}",
            teacher=self.teacher and f"{self.teacher},scale={factor:g}",
            settings=(*self.settings, *settings),
            scaled_down=True,
        )


@dataclass(frozen=True)
class Average:
    """The mean over several trials, as in the last column of the paper's table 2."""

    title: str
    over: str  # how the titles of its rows begin; * stands for anything
    paper: Value | None = None
    note: str = ""


@dataclass(frozen=True)
class Difference:
    """How many points one row lies above another: a drop is below 0."""

    title: str
    of: str  # titles of the two
    above: str
    paper: float | None = None


@dataclass(frozen=True)
class Plan:
    """All trials of one experiment, and how to show them."""

    name: str
    source: str
    title: str
    effort: str
    trials: tuple[Trial, ...]
    averages: tuple[Average, ...] = ()
    differences: tuple[Difference, ...] = ()
    order: int = 1000  # its place in the list of experiments
    needs_gpu: bool = False
    settings: tuple[str, ...] = ()  # of all trials, beside their own
    axis: str = "trials"  # drawn: accuracy against streams, macs, epochs, trials or variants

    def teachers_of(self, trial: Trial) -> list[Trial]:
        """List the trials whose networks teach this one, the teacher's own teacher first."""
        found = [one for one in self.trials if trial.teacher and one.name == trial.teacher][:1]
        return [earlier for one in found for earlier in self.teachers_of(one)] + found

    def jobs(self) -> list[tuple[Trial, int]]:
        """List the runs that can be trained, all with the first seed first, teachers before."""
        here = [(trial, seed) for trial in self.trials for seed in trial.seeds if not trial.removed]
        return sorted(here, key=lambda job: (job[1], len(self.teachers_of(job[0]))))

    def changed(self, settings: Sequence[str]) -> "Plan":
        """Train every trial with these settings too."""
        return replace(
            self,
            trials=tuple(one if one.removed else one.changed(settings) for one in self.trials),
            settings=tuple(setting for setting in settings if changes_the_run(setting)),
        )

    def scaled(self, factor: float) -> "Plan":
        """Train every trial for a fraction of its epochs and steps."""
        if not 0 < factor <= 1:
            raise ValueError(f"scale={factor:g} must be a fraction, above 0 and up to 1.")
        if factor == 1:
            return self
        return replace(self, trials=tuple(trial.scaled(factor) for trial in self.trials))


def changes_the_run(setting: str) -> bool:
    """Tell whether a setting decides what comes out of a run, so that it needs a folder.

    >>> changes_the_run("train.precision=bf16"), changes_the_run("train.threads=2")
    (True, False)
    """
    return setting.partition("=")[0] not in FREE


def name_changes(settings: Sequence[str]) -> str:
    """Name changed settings as folders do.

    >>> name_changes(["train.epochs=10", "model.width=2"])
    ',epochs=10,width=2'
    """
    return "".join(f",{setting.partition('.')[2]}" for setting in settings).replace("/", "-")


def load_plan(name: str) -> Plan:
    """Read one of our plans by its name."""
    file = files("mimonets.experiments") / "plans" / f"{name}.yaml"
    return _load(name, file.read_text(encoding="utf-8"))


def read_plan(path: Path) -> Plan:
    """Read a plan of one's own from a file."""
    return _load(path.stem, path.read_text(encoding="utf-8"))


def plan_names() -> list[str]:
    """List the plans there are."""
    folder = files("mimonets.experiments") / "plans"
    return sorted(
        file.name.removesuffix(".yaml") for file in folder.iterdir() if ".yaml" in file.name
    )


@cache
def printed() -> dict[str, Any]:
    """Read what the paper prints beside accuracies: costs, and numbers of its theory."""
    file = files("mimonets.experiments") / "paper.yaml"
    found: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found


Keys = Mapping[str, tuple[type[Any], ...]]  # what may stand in a part of a plan, by its types


def _simple_keys(part: type[Any]) -> Keys:
    """List the fields that stand in a plan as they are; names are made."""
    simple = [field for field in fields(part) if field.type in (str, int, bool)]
    return {field.name: (cast(type, field.type),) for field in simple if field.name != "name"}


PLAN_KEYS: Keys = {
    **_simple_keys(Plan),
    **dict.fromkeys(("trials", "averages", "differences"), (list,)),
    **{"shared": (dict,), "templates": (list,)},  # templates: anchors for YAML's <<
}
TRIAL_KEYS: Keys = {
    **_simple_keys(Trial),
    **{"set": (dict,), "seeds": (int,), "modes": (list,), "paper": (dict,)},
}
AVERAGE_KEYS: Keys = {**_simple_keys(Average), "paper": (int, float, list)}
DIFFERENCE_KEYS: Keys = {**dict.fromkeys(("title", "of", "from"), (str,)), "paper": (int, float)}


@cache
def _load(name: str, text: str) -> Plan:
    where = f"The plan {name}"
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{where} is no YAML: {shorten(str(error), 200)}.") from None
    _check(where, content, PLAN_KEYS, ("source", "title", "effort", "trials"))
    shared = content.get("shared", {})
    _check(f"{where}, shared", shared, TRIAL_KEYS)
    trials, averages = content["trials"], content.get("averages", [])
    differences = content.get("differences", [])
    for number, trial in enumerate(trials, start=1):
        _check(f"{where}, trial {number}", trial, TRIAL_KEYS, ("title", "recipe"))
    for number, average in enumerate(averages, start=1):
        _check(f"{where}, average {number}", average, AVERAGE_KEYS, ("title", "over"))
    for number, one in enumerate(differences, start=1):
        _check(f"{where}, difference {number}", one, DIFFERENCE_KEYS, ("title", "of", "from"))
    made = tuple(_trial(where, {**shared, **trial}) for trial in trials)
    for number, trial in enumerate(made):
        before = [one.name for one in made[:number]]
        if trial.teacher and trial.teacher not in before:
            raise ValueError(
                f"{where}, {trial.title}: teacher={trial.teacher!r} must be the name of an earlier "
                f"trial{did_you_mean(trial.teacher, before)}, which is its recipe and changes."
            )
    return Plan(
        name=name,
        **{key: content[key] for key in _simple_keys(Plan) if key in content},
        trials=made,
        averages=tuple(
            Average(**{**one, "paper": _value(where, one["paper"]) if "paper" in one else None})
            for one in averages
        ),
        differences=tuple(
            Difference(one["title"], one["of"], one["from"], one.get("paper"))
            for one in differences
        ),
    )


def _check(where: str, content: object, known: Keys, needed: tuple[str, ...] = ()) -> None:
    """Refuse keys that nothing reads and values of another type; name keys that are missing."""
    if not isinstance(content, dict):
        raise ValueError(f"{where} must hold keys and values: {', '.join(known)}.")
    problems = [
        f"unknown key {key!r}{did_you_mean(str(key), known)}" for key in content if key not in known
    ]
    problems += [f"{key!r} is missing" for key in needed if content.get(key) in (None, "", [])]
    problems += [
        f"{key!r} must be of type {' or '.join(one.__name__ for one in known[key])}, not "
        f"{shorten(repr(value), 40)}"
        for key, value in content.items()
        if key in known
        and (not isinstance(value, known[key]) or (isinstance(value, bool) and int in known[key]))
    ]
    if problems:
        raise ValueError(f"{where}: {'; '.join(problems)}.")


def _trial(where: str, content: Mapping[str, Any]) -> Trial:
    modes, papers = content.get("modes"), content.get("paper", {})
    if not all(isinstance(mode, int) and mode >= 1 for mode in (*(modes or ()), *papers)):
        raise ValueError(
            f"{where}, {content['title']}: modes and keys of paper must be numbers of active "
            f"streams, such as paper: {{4: 90}}."
        )
    settings = tuple(f"{name}={_written(value)}" for name, value in content.get("set", {}).items())
    changes = name_changes(settings)
    changes += ",taught" if "teacher" in content else ""
    return Trial(
        **{key: content[key] for key in _simple_keys(Trial) if key in content},
        name=content["recipe"] + changes,
        settings=settings,
        seeds=tuple(range(content.get("seeds", 1))),
        only_modes=None if modes is None else tuple(modes),
        paper={mode: _value(where, value) for mode, value in papers.items()},
    )


def _value(where: str, written: float | list[float]) -> Value:
    pair = written if isinstance(written, list) else [written, None]
    if (
        len(pair) != 2
        or not isinstance(pair[0], int | float)
        or not isinstance(pair[1], int | float | None)
    ):
        raise ValueError(
            f"{where}: a value of the paper is a mean or [mean, deviation], not "
            f"{shorten(repr(written), 40)}."
        )
    return pair[0], pair[1]


def _written(value: object) -> str:
    """Write a setting as the command line takes it."""
    return yaml.safe_dump(value, default_flow_style=True).replace("\n...", "").strip()
