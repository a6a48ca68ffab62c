"""``mimonets compare``: does it pay for my network and data? Candidates trained alike, and advice.

Train a network as it is, on smaller inputs and with several inputs per pass, all alike on your
data; measure accuracy, MACs, speed and memory, and say what to run.
"""

import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mimonets._show import make_console, make_table, mmac, print_json
from mimonets.cli._options import NETWORK_HELP, Parser, imported, positive, sizes


def add_options(parser: Parser) -> None:
    """Take the options."""
    about = f"{NETWORK_HELP}; or FILE.py:FUNCTION, as with --import"
    parser.add_argument("network", nargs="?", help=about)
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
        metavar="NAME=NETWORK",
        help="another network that takes part: FILE.py:FUNCTION, or what NETWORK takes; may be "
        "repeated",
    )
    parser.add_default("--minutes", 10.0, "for everything")
    parser.add_argument("--steps", type=positive, help="of every candidate, in place of minutes")
    parser.add_default("--seeds", 3, "", type=positive)
    parser.add_default("--first-seed", 0, "")
    parser.add_argument("--speed", type=float, help="the aim: so many times as fast")
    parser.add_argument("--macs", type=float, help="or the aim: at most so many MACs per input")
    parser.add_argument(
        "--streams", type=sizes, default=(2, 4), help="inputs per pass, as in 2,4 (default)"
    )
    parser.add_default("--lr", 3e-3, "lower it for pretrained weights")
    about = "of training; bf16 is faster on CPUs that compute in it"
    parser.add_default("--precision", "32", about, choices=("32", "bf16"))
    parser.add_default("--batch-size", 16, "when speed is measured", type=positive)
    parser.add_argument(
        "--loss",
        choices=("cross_entropy", "squared_error", "binary"),
        help="by default cross_entropy for labels, squared_error for numbers",
    )
    parser.add_argument("--no-int8", action="store_true", help="float32 only, which is sooner done")
    parser.add_default("--workers", 1, "trainings at a time, in processes of Ray", type=positive)
    parser.add_argument("--out", default="runs/compare", help="the same command resumes there")
    parser.add_json()


def run(args: Namespace) -> None:
    """Compare, and print table and advice."""
    from mimonets.experiments.compare import compare

    if (args.make is None) == (args.network is None):
        raise ValueError("Name one network: NETWORK, or --import FILE.py:FUNCTION.")
    network = _maker(args.network) if args.make is None else _function(args.make)
    siblings = {}
    for text in args.sibling:
        name, found, where = text.partition("=")
        if not found or not name:
            raise ValueError(f"--sibling {text!r}: write NAME=FILE.py:FUNCTION.")
        if name in siblings:
            raise ValueError(f"--sibling {name} is there twice: give each a name of its own.")
        siblings[name] = _maker(where)
    is_function = ":" in args.data and not Path(args.data).exists()
    result = compare(
        network,
        imported(args.data) if is_function else args.data,
        **{name: getattr(args, name) for name in ("out", "speed", "macs", "minutes", "steps")},
        **{name: getattr(args, name) for name in ("seeds", "first_seed", "batch_size", "loss")},
        **{name: getattr(args, name) for name in ("streams", "lr", "workers", "precision")},
        siblings=siblings,
        int8=not args.no_int8,
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    if args.json:
        print_json(result)
        return
    make_console().print(table(result))
    for name, reason in result["refused"].items():
        print(f"{name} is missing: {reason}")
    print(result["advice"])
    print(f"{args.out}/compare.json and compare.png have the numbers; to run one:")
    taken = [row["served"] for row in result["rows"] if f"take {row['name']}" in result["advice"]]
    print(f"mimonets serve {(taken and taken[0]) or f'{args.out}/served/NAME'}")


def _maker(name: str) -> Callable[[], Any]:
    """Find what makes a network: a function, or a network by any of its names."""
    if (":" in name and not Path(name).exists()) or name.endswith(".py"):
        return _function(name)
    model = _named(name)
    if model.num_streams > 1:
        raise ValueError(
            f"{name} takes {model.num_streams} inputs per pass already: name a plain network, of "
            f"which compare makes the others."
        )
    return partial(_named, name)


def _function(name: str) -> Callable[[], Any]:
    """Find a function that makes a network, and call it once: a typo is told before any work."""
    imported(name)
    return partial(imported, name)


def _named(name: str) -> Any:
    """Load a network, or make that of a recipe with new weights."""
    from mimonets.cli.open_models import find_network, load_network
    from mimonets.recipes.create import create

    is_recipe = isinstance(find_network(name), str)
    return create(name) if is_recipe else load_network(name)


def table(result: dict[str, Any]) -> Any:
    """Lay out a row per candidate."""
    from mimonets.experiments.advice import written

    rows = result["rows"]
    has_classes = "accuracy" in rows[0]
    score = "accuracy, %" if has_classes else "loss"
    found = make_table(
        "Candidates trained alike",
        ["candidate", score, "MMAC/input", "inputs/s", "speed", "engine", "memory, MB"],
        f"{result['plan']['steps']} steps each, {len(rows[0]['by_seed'])} seeds, "
        f"{result['test_items']} test items; ± is the 95 % interval over both. "
        f"{'int8: one seed. ' if any(row['name'] != row['base'] for row in rows) else ''}"
        f"Speed at batches of {result['batch_size']}. Memory: weights and activations.",
    )
    for row in rows:
        found.add_row(
            row["name"],
            written(row).removeprefix("loss "),
            mmac(row["macs"]),
            f"{row['inputs_per_second']:,.0f}",
            f"{row['speed']:.2f}x",
            row["engine"].removesuffix("-int8"),
            f"{row['memory'] / 1e6:.1f}",
        )
    return found
