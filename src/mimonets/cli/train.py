"""``mimonets train``: train a recipe, once or with several seeds."""

import json
import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any

from mimonets._seeds import mean_and_deviation
from mimonets._show import make_console, print_json
from mimonets.cli._options import SET_HELP, add_data, add_json, positive


def add_parser(subparsers: Any) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "train",
        help="train a recipe",
        description="Train a recipe into a run folder: settings, environment, metrics, "
        "checkpoints and the final model. Ctrl-C saves; --resume continues to the same weights.",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe's name")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SETTING=VALUE", help=SET_HELP
    )
    parser.add_argument("--out", metavar="DIR", help="the run's folder (runs/RECIPE)")
    parser.add_argument("--resume", action="store_true", help="resume the run in the folder")
    parser.add_argument("--seeds", type=positive, default=1, metavar="K", help="train K times")
    parser.add_argument("--devices", type=positive, metavar="K", help="processes on this machine")
    parser.add_argument(
        "--taste", action="store_true", help="a minute's worth of it, to try it out"
    )
    add_data(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: Namespace) -> None:
    """Train a recipe, once or with several seeds."""
    from mimonets.recipes import data_settings, load_recipe
    from mimonets.recipes.execute import run_recipe, taste
    from mimonets.training import TrainingDivergedError

    overrides = [*args.set]
    if args.devices:
        overrides.append(f"train.devices={args.devices}")
    recipe = load_recipe(args.recipe, overrides)
    if args.data_dir is not None:
        data = data_settings(args.data_dir, recipe.data.name)
        recipe = load_recipe(args.recipe, [*overrides, *data])
    if args.taste:
        recipe = taste(recipe)
    folder = Path(args.out or f"runs/{args.recipe}{'-taste' if args.taste else ''}")
    results, rank = [], 0
    for number in range(args.seeds):
        seeded = recipe.with_seed(recipe.train.seed + number)
        run_dir = folder if args.seeds == 1 else folder / f"seed-{seeded.train.seed}"
        finished = args.resume and (run_dir / "result.json").exists()
        if not finished:
            try:
                rank = run_recipe(seeded, run_dir, resume=args.resume).rank
            except TrainingDivergedError as error:
                raise ValueError(str(error)) from error
        results.append(json.loads((run_dir / "result.json").read_text(encoding="utf-8")))
    if rank != 0:  # one of several processes: the first one speaks
        return
    summary = _summarise_seeds(results)
    if args.json:
        print_json({"recipe": recipe.name, "folder": str(folder), "modes": summary})
        return
    from mimonets.evaluation.report import seeds_table

    make_console().print(seeds_table(recipe.name, summary))
    first = folder if args.seeds == 1 else folder / f"seed-{recipe.train.seed}"
    print(f"The model is in {first / 'model'}. Next: mimonets evaluate {shlex.quote(str(first))}")


def _summarise_seeds(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and spread of the accuracy of each mode over the seeds."""
    summary = []
    for mode in results[0]["final"]:
        accuracies = [result["final"][mode]["accuracy"] for result in results]
        mean, deviation = mean_and_deviation(accuracies)
        summary.append(
            {
                "active_streams": int(mode),
                "accuracies": accuracies,
                "mean": mean,
                "deviation": deviation,
            }
        )
    return summary
