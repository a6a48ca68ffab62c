"""Options that several commands share."""

import argparse
import importlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from mimonets._messages import did_you_mean, first_line

NETWORK_HELP = (
    "a recipe's name, the folder of a run, a saved model or an export, or the name of a network "
    "that ships with mimonets, such as digits-keys"
)


class HelpFormatter(argparse.HelpFormatter):
    """Wraps sentences, and leaves text of several lines, such as examples, as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = text.strip("\n").splitlines()
        return text if len(lines) > 1 else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """A parser that has what several commands take; its errors are one line, with a suggestion."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormatter, **settings})

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, and end."""
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        meant = did_you_mean(choice[1], re.findall(r"[\w+-]+", choice[2])) if choice else ""
        self.exit(2, f"{self.prog}: error: {message}{meant} (--help shows how)\n")

    def add_model(self, *, several: bool = False) -> None:
        """Take a network, changes to it and operating points."""
        if several:
            what = f"{NETWORK_HELP}; several that take the same inputs run in one race"
            self.add_argument("models", nargs="+", metavar="NETWORK", help=what)
        else:
            self.add_argument("model", metavar="NETWORK", help=NETWORK_HELP)
        self.add_set()
        self.add_points()
        self.add_imports()

    def add_default(self, name: str, default: Any, meaning: str, **more: Any) -> None:
        """Take an option that has a default, which its help shows; its type is the default's."""
        shown = f"{meaning} (%(default)s)" if meaning else "%(default)s"
        usual = {"type": type(default), "help": shown}
        self.add_argument(name, default=default, **{**usual, **more})

    def add_set(self, whose: str = "the recipe") -> None:
        """Take changes of settings."""
        what = f"override a setting of {whose}, as in --set model.width=2; may be repeated"
        self.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE", help=what)

    def add_load(self) -> None:
        """Take how requests arrive, and how soon they want an answer."""
        workloads = ("poisson", "mmpp", "diurnal", "step")
        self.add_default("--workload", "poisson", "how requests arrive", choices=workloads)
        self.add_argument("--trace", metavar="FILE", help="recorded arrivals, one time a line")
        self.add_slo()
        self.add_default("--seed", 0, "")

    def add_slo(self) -> None:
        """Take how soon a request wants an answer."""
        self.add_default("--slo-ms", 100.0, "time to answer")

    def add_theta(self) -> None:
        """Take the policy's one setting."""
        what = "fraction of that time that the queue may use; less is faster, more is more accurate"
        self.add_default("--theta", 0.6, what)

    def add_out(self) -> None:
        """Offer to write results."""
        self.add_argument("--out", metavar="FILE", help="also write everything as JSON to FILE")

    def add_imports(self) -> None:
        """Take modules of the user to import first: those that register builders of networks."""
        self.add_argument(
            "--import",
            action="append",
            default=[],
            dest="imports",
            metavar="MODULE",
            help="import this module of yours first, one that registers what builds your network; "
            "may be repeated",
        )

    def add_points(self) -> None:
        """Take a list of operating points."""
        self.add_argument(
            "--active-streams",
            type=point_numbers,
            metavar="1,2,max",
            help="only these operating points, by number: of active streams, or the place in the "
            "list of a slimmable network; max is the fastest",
        )

    def add_data(self) -> None:
        """Take the folder of the original data files."""
        self.add_argument(
            "--data-dir", metavar="DIR", help="where the original files of the data set are"
        )

    def add_json(self) -> None:
        """Offer JSON in place of a table."""
        self.add_argument("--json", action="store_true", help="print JSON instead of a table")


def import_modules(names: Sequence[str]) -> None:
    """Import modules that the command line names, from the folder it is called in too."""
    if names and "" not in sys.path:
        sys.path.insert(0, "")
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # it is third-party code
            line = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(
                f"--import {name[:100]} fails: {line[:300]} (name a module as Python does, such as "
                f"my_networks for my_networks.py in this folder)."
            ) from error


def imported(text: str) -> Any:
    """Call a function of the user: FILE.py:FUNCTION or MODULE:FUNCTION, without arguments."""
    where, _, name = text.rpartition(":")
    if not where or not name.isidentifier():
        raise ValueError(
            f"--import {text[:100]!r} names no function: write FILE.py:FUNCTION, such as "
            f"mine.py:make."
        )
    path = Path(where)
    if path.suffix == ".py":
        if not path.is_file():
            raise ValueError(f"--import {text[:100]}: there is no file {where}.")
        where, folder = path.stem, str(path.resolve().parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
    import_modules([where])
    function = getattr(sys.modules[where], name, None)
    if not callable(function):
        raise ValueError(f"--import {text[:100]}: {where} has no function {name}.")
    try:
        return function()
    except Exception as error:  # it is third-party code
        raise ValueError(f"--import {text[:100]} fails: {first_line(error)}.") from error


def sizes(text: str) -> tuple[int, ...]:
    """Read the shape of one input, such as 3,32,32."""
    words = text.split(",")
    if not all(word.isdigit() and 1 <= len(word) <= 6 and int(word) for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape: write integers, as in 3,32,32")
    return tuple(map(int, words))


def point_numbers(text: str) -> list[int | None]:
    """Read numbers of operating points, such as 1,2,max; None is the fastest."""
    words = dict.fromkeys(text.split(","))
    try:
        return [None if word == "max" else int(word) for word in words]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of operating points: write integers with commas, as in 1,2,4 or "
            f"1,max"
        ) from None


def numbers(text: str) -> tuple[float, ...]:
    """Read a list of numbers, such as 0.5,1,2."""
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of numbers: write them with commas, as in 0.5,1,2"
        ) from None


def replicas(text: str) -> int | tuple[int, int]:
    """Read a number of replicas, or the fewest and the most: 2 or 1-4."""
    words = text.split("-")
    if not 1 <= len(words) <= 2 or not all(w.isdigit() and 1 <= int(w) <= 1000 for w in words):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of replicas: write 2, or 1-4")
    fewest, most = int(words[0]), int(words[-1])
    if fewest > most:
        raise argparse.ArgumentTypeError(f"{text!r}: the fewest come first, as in 1-4")
    return fewest if len(words) == 1 else (fewest, most)


def positive(text: str) -> int:
    """Read an integer from 1 to a million: of rounds, seeds or inputs more are a mistake."""
    if not text.isdigit() or not 1 <= len(text) <= 7 or not 1 <= int(text) <= 1_000_000:
        shown = text if len(text) <= 20 else text[:17] + "..."
        raise argparse.ArgumentTypeError(f"{shown!r} must be an integer from 1 to 1000000")
    return int(text)


def fraction(text: str) -> float:
    """Read a fraction, above 0 and up to 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a fraction, above 0 and up to 1")
    return value


def check_can_write(path: str) -> None:
    """Make the folder of a file to be written later; raises OSError if there can be none."""
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir():
        raise ValueError(f"{path} is a folder: pass the path of a file to write.")
    there = place.exists()
    with place.open("ab"):
        pass
    if not there:
        place.unlink()
