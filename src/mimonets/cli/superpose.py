"""``mimonets superpose``: where a network of your own can take several inputs per pass.

List where inputs can be bound and unbound in a network of your own, the best pair first, with the
expected cost per input.
"""

from argparse import Namespace
from typing import Any

from mimonets._show import make_console, make_table, mmac, print_json
from mimonets.cli._options import Parser, imported, positive, sizes


def add_options(parser: Parser) -> None:
    """Take the options."""
    parser.add_argument(
        "--import",
        required=True,
        dest="network",
        metavar="FILE.py:FUNCTION",
        help="a function of yours that gives the network, or the network and example inputs (b, "
        "...)",
    )
    parser.add_argument(
        "--shape", type=sizes, help="of one input, as in 3,32,32, if the function gives no example"
    )
    parser.add_default("--streams", 4, "inputs per pass", type=positive)
    parser.add_argument("--binding", default="hrr", help="hrr, matrix, hadamard or tiles")
    parser.add_json()


def run(args: Namespace) -> None:
    """Print all pairs of modules that work."""
    from mimonets.models import name_of, suggest_boundaries

    network, example = network_and_example(args.network, args.shape)
    found = suggest_boundaries(
        network, example, num_streams=args.streams, binding=args.binding, most=5
    )
    if args.json:
        print_json([one.as_dict() for one in found])
        return
    title = f"{name_of(network)}: where {args.streams} inputs can share a pass"
    names = ("bind_after", "unbind_before", "features", "of the cost", "MMAC/input", "fewer MACs")
    table = make_table(title, names, words=(0, 1))
    for one in found:
        table.add_row(
            *(one.bind_after, one.unbind_before, str(one.features), f"{one.share:.0%}"),
            *(mmac(one.macs), f"{one.saving:.1f}x"),
        )
    make_console().print(table)
    best = found[0]
    print(
        f"mn.superpose(network, num_streams={args.streams}, binding={args.binding!r}, bind_after="
        f"{best.bind_after!r}, unbind_before={best.unbind_before!r}, example=example)"
    )


def network_and_example(text: str, shape: tuple[int, ...] | None = None) -> tuple[Any, Any]:
    """Call a function of the user for a network, and for example inputs if it gives them."""
    import torch
    from torch import nn

    found = imported(text)
    network, example = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(network, nn.Module):
        raise ValueError(
            f"--import {text} gives a {type(network).__name__}, not a torch.nn.Module: return the "
            f"network, or (network, example)."
        )
    if shape is not None:
        example = torch.randn(2, *shape)
    return network, example
