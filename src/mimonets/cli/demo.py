"""``mimonets demo``: the paper's network on handwritten digits, beside tiles and plain networks."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from mimonets._show import make_console, print_json
from mimonets.cli._options import add_json, positive


def add_parser(subparsers: Any) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "demo",
        help="train the paper's network on handwritten digits, beside tiles and plain networks",
        description="Train four networks on scikit-learn's handwritten digits, offline, in about "
        "two minutes on two cores: the paper's MIMOConv with keys, which takes up to four inputs "
        "per pass; a network in tiles; a plain network of the same size; and a plain network of "
        "fast mode's cost. Then show accuracy on digits by other writers, cost, speed at batch 4, "
        "64 and 512 (in ONNX Runtime, if it is installed), and a plot.",
    )
    parser.add_argument("--out", default="runs/demo", metavar="DIR", help="(%(default)s)")
    parser.add_argument("--epochs", type=positive, metavar="K", help="of every training, to try it")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: Namespace) -> None:
    """Train the networks, and compare them at every operating point."""
    from mimonets.experiments.demo import run_demo

    record = run_demo(Path(args.out), make_console(quiet=args.json), args.epochs)
    if args.json:
        print_json(record)
