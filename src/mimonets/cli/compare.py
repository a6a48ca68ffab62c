"""``mimonets compare``: does it pay for my network and data."""

import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from mimonets._show import make_console, mmac, print_json
from mimonets.cli._options import NETWORK_HELP, add_json, imported, positive


def add_parser(subparsers: Any) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "compare",
        help="does it pay for my network and data: candidates trained alike, a table, advice",
        description="Train a network as it is, on smaller inputs and with several inputs per pass, "
        "all alike on your data; measure accuracy, MACs, speed and memory, and say what to run.",
    )
    parser.add_argument(
        "network",
        nargs="?",
        help=NETWORK_HELP,
    )
    parser.add_argument(
        "--import",
        dest="make",
        metavar="FILE.py:FUNCTION",
        help="a function of yours that makes the network",
    )
    parser.add_argument(
        "--data",
        required=True,
        help="a folder with one sub-folder per class, a .npz, or FILE.py:FUNCTION that gives "
        "(train, test), two DataLoaders",
    )
    parser.add_argument(
        "--sibling",
        action="append",
        default=[],
        metavar="NAME=FILE.py:FUNCTION",
        help="another network that takes part; may be repeated",
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="for everything (default 10)")
    parser.add_argument("--steps", type=positive, help="of every candidate, in place of minutes")
    parser.add_argument("--seeds", type=positive, default=3, help="default 3")
    parser.add_argument("--first-seed", type=int, default=0, help="default 0")
    parser.add_argument("--speed", type=float, help="the aim: so many times as fast")
    parser.add_argument("--macs", type=float, help="or the aim: at most so many MACs per input")
    parser.add_argument("--batch-size", type=positive, default=16, help="when speed is measured")
    parser.add_argument("--out", default="runs/compare", help="the same command resumes there")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: Namespace) -> None:
    """Compare, and print table and advice."""
    from mimonets.experiments.candidates import compare

    network = _network(args)
    siblings = {}
    for text in args.sibling:
        name, found, where = text.partition("=")
        if not found or not name:
            raise ValueError(f"--sibling {text!r}: write NAME=FILE.py:FUNCTION.")
        siblings[name] = partial(imported, where)
    is_function = ":" in args.data and not Path(args.data).exists()
    result = compare(
        network,
        imported(args.data) if is_function else args.data,
        **{name: getattr(args, name) for name in ("out", "speed", "macs", "minutes", "steps")},
        **{
            "seeds": args.seeds,
            "first_seed": args.first_seed,
            "siblings": siblings,
            "batch_size": args.batch_size,
        },
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    if args.json:
        print_json(result)
        return
    make_console().print(table(result))
    print(result["advice"])
    print(f"{args.out}/compare.json and compare.png have the numbers; to run one:")
    print(f"mimonets serve {args.out}/served/NAME")


def _network(args: Namespace) -> Any:
    """Find what makes the network, or the network itself."""
    if (args.make is None) == (args.network is None):
        raise ValueError("Name one network: NETWORK, or --import FILE.py:FUNCTION.")
    if args.make is not None:
        return partial(imported, args.make)
    from mimonets.cli.open_models import find_network, load_network
    from mimonets.recipes.create import create

    untrained = isinstance(find_network(args.network), str)
    model = create(args.network) if untrained else load_network(args.network)
    if model.num_streams > 1:
        raise ValueError(
            f"{args.network} takes {model.num_streams} inputs per pass already: name a plain "
            f"network, of which compare makes the others."
        )
    return model


def table(result: dict[str, Any]) -> Any:
    """Lay out a row per candidate."""
    from rich.table import Table

    seeds = len(result["rows"][0]["by_seed"])
    found = Table(
        title="Candidates trained alike",
        caption=f"{result['plan']['steps']} steps each, {seeds} seeds, {result['test_items']} test "
        f"items; ± is the 95 % interval over both",
    )
    found.add_column("candidate")
    for name in ("accuracy, %", "MMAC/input", "inputs/s", "speed", "engine", "memory, MB"):
        found.add_column(name, justify="right")
    for row in result["rows"]:
        found.add_row(
            row["name"],
            f"{row['accuracy'] * 100:.1f} ± {row['interval'] * 100:.1f}",
            mmac(row["macs"]),
            f"{row['inputs_per_second']:,.0f}",
            f"{row['speed']:.2f}x",
            row["engine"],
            f"{row['memory'] / 1e6:.1f}",
        )
    for name, reason in result["refused"].items():
        found.add_row(name, f"not built: {reason[:60]}")
    return found
