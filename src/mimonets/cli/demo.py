"""``mimonets demo``: a dynamic and a plain network on handwritten digits, side by side."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from mimonets._show import make_console, print_json
from mimonets.cli._options import add_json, positive


def add_parser(subparsers: Any) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "demo",
        help="train a dynamic and a plain network on handwritten digits, and compare them",
        description="Train a network that takes up to four inputs per pass and a plain one of the "
        "same size on scikit-learn's handwritten digits, offline, in about two minutes; then "
        "show accuracy on digits by other writers, speed and cost of every operating point, and a "
        "plot.",
    )
    parser.add_argument("--out", default="runs/demo", metavar="DIR", help="(%(default)s)")
    parser.add_argument("--epochs", type=positive, metavar="K", help="of training (100 and 30)")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: Namespace) -> None:
    """Train a dynamic and a plain network on digits, and compare them at every operating point."""
    from dataclasses import replace

    from mimonets.experiments.demo import run_demo
    from mimonets.recipes import load_recipe

    recipes = [load_recipe(f"digits-writers-{name}") for name in ("tiles-late", "wideresnet")]
    if args.epochs:
        recipes = [replace(r, train=replace(r.train, epochs=args.epochs)) for r in recipes]
    record = run_demo(recipes, Path(args.out), make_console(quiet=args.json))
    if args.json:
        print_json(record)
