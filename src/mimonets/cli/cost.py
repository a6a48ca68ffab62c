"""``mimonets cost``: mACs per input, by part and mode."""

from argparse import Namespace
from typing import Any

from mimonets._show import make_console, print_json
from mimonets.cli._options import add_json, add_model


def add_parser(subparsers: Any) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "cost",
        help="MACs per input by part, in every mode",
        description="Count multiply-accumulates per input by part of the network, in every mode: "
        "as the paper counts them, and plainly (convolutions and matrix products only).",
    )
    add_model(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: Namespace) -> None:
    """Print MACs per input, by part and mode."""
    from mimonets.evaluation import count_modes
    from mimonets.evaluation.report import CONVENTIONS, cost_dict, cost_table
    from mimonets.recipes import model_config

    config = model_config(args.model, args.set)
    costs = count_modes(config, args.active_streams)
    if args.json:
        print_json({"model": args.model, "macs_per_input": cost_dict(costs)})
        return
    for convention in CONVENTIONS:
        make_console().print(cost_table(args.model, costs, convention))
