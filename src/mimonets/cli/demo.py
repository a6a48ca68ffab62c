"""``mimonets demo``: train the paper's network on handwritten digits, beside tiles and plain ones.

Train four networks on scikit-learn's handwritten digits, offline, in about two minutes on two
cores: the paper's MIMOConv with keys, which takes up to four inputs per pass; a network in tiles; a
plain network of the same size; and a plain network of fast mode's cost. Then show accuracy on
digits by other writers, cost, speed at batch 4, 64 and 512 (in ONNX Runtime, if it is installed),
and a plot.
"""

from argparse import Namespace
from pathlib import Path

from mimonets._show import make_console, print_json
from mimonets.cli._options import Parser, positive


def add_options(parser: Parser) -> None:
    """Take the options."""
    parser.add_default("--out", "runs/demo", "", metavar="DIR")
    parser.add_argument("--epochs", type=positive, metavar="K", help="of every training, to try it")
    parser.add_json()


def run(args: Namespace) -> None:
    """Train the networks, and compare them at every operating point."""
    from mimonets.experiments.demo import run_demo

    record = run_demo(Path(args.out), make_console(quiet=args.json), args.epochs)
    if args.json:
        print_json(record)
