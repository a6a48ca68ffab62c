"""``mimonets train``: train a recipe.

Train a recipe into a run folder: settings, environment, metrics, checkpoints and the trained model.
Ctrl-C saves; --resume continues to the same weights.

mimonets recipes RECIPE prints every setting; "Every setting" in docs/training.md explains them.

Examples:
  mimonets train digits-mimoconv-dynamic --set train.epochs=2 --out runs/digits
  mimonets train digits-mimoconv-dynamic --set train.epochs=2 --out runs/digits --resume
  mimonets train mnist-mimoconv-n4 --data-dir data --taste
"""

import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from mimonets._show import print_json
from mimonets.cli._options import NETWORK_HELP, Parser, positive


def add_options(parser: Parser) -> None:
    """Take the options."""
    parser.add_argument("recipe", metavar="NETWORK", help=f"whose recipe to train: {NETWORK_HELP}")
    parser.add_set()
    parser.add_argument("--out", metavar="DIR", help="the run's folder (runs/RECIPE)")
    parser.add_argument("--resume", action="store_true", help="resume the run in the folder")
    parser.add_argument(
        "--devices", type=positive, metavar="K", help="processes that share every batch"
    )
    parser.add_argument(
        "--multiply-batch",
        choices=["keep", "linear", "sqrt"],
        metavar="RULE",
        help="another recipe: the batch times --devices, and the learning rate kept (keep), "
        "multiplied too (linear) or by the square root (sqrt)",
    )
    parser.add_argument(
        "--taste", action="store_true", help="a minute's worth of it, to try it out"
    )
    parser.add_data()
    parser.add_json()


def run(args: Namespace) -> None:
    """Train a recipe."""
    from mimonets.cli.open_models import find_recipe
    from mimonets.recipes.execute import run_recipe, taste
    from mimonets.training import TrainingDivergedError

    overrides = [*args.set]
    if args.devices:
        overrides.append(f"train.devices={args.devices}")
    recipe = find_recipe(args.recipe, overrides).with_data_dir(args.data_dir)
    if args.multiply_batch:
        recipe = _multiplied(recipe, args.devices or 1, args.multiply_batch)
    if args.taste:
        recipe = taste(recipe)
    folder = Path(args.out or f"runs/{recipe.name}{'-taste' if args.taste else ''}")
    if args.resume and not folder.exists():
        print(f"nothing to resume in {folder}: starting a new run there", file=sys.stderr)
    try:
        result = run_recipe(recipe, folder, resume=args.resume)
    except TrainingDivergedError as error:
        raise ValueError(str(error)) from error
    if result.rank:  # one of several processes: the first one speaks
        return
    if args.json:
        modes = [{**row, "active_streams": mode} for mode, row in result.final.items()]
        found = {"recipe": recipe.name, "folder": str(folder), "training": result.training}
        print_json({**found, "modes": modes})
        return
    accuracies = [f"{row['accuracy']:.2%} ({n} active)" for n, row in result.final.items()]
    if accuracies:
        print(f"{recipe.name}: accuracy on the validation data {', '.join(accuracies)}.")
    else:
        last = ", ".join(
            f"{name} {value:.3f}"
            for name, value in result.training.items()
            if isinstance(value, int | float)
        )
        print(
            f"{recipe.name}: {last or 'nothing was kept'} on the training data in the last "
            f"epoch. Nothing else was measured: there is no validation data."
        )
    print(f"The model is in {result.model_dir}. Next: mimonets evaluate {quote(str(folder))}")


def _multiplied(recipe: Any, devices: int, rule: Any) -> Any:
    """Multiply the batch by the number of devices, and say so."""
    before, config = recipe.train, recipe.train.multiplied(devices, rule)
    print(
        f"another recipe: train.batch_size {before.batch_size} -> {config.batch_size}, "
        f"train.lr {before.lr:g} -> {config.lr:g}",
        file=sys.stderr,
    )
    return replace(recipe, train=config)
