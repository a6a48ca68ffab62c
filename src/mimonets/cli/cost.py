"""``mimonets cost``: MACs per input, by part and operating point."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mimonets._show import make_console, mmac, print_json
from mimonets.cli._options import add_json, add_model

if TYPE_CHECKING:
    from rich.table import Table

CONVENTIONS = {
    "paper": "the paper's count: normalisation 2, activation and pooling 1 per element",
    "plain": "plain count: convolutions and matrix products only",
}


def add_parser(subparsers: Any) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "cost",
        help="MACs per input by part, at every operating point",
        description="Count multiply-accumulates per input by part of the network, at every "
        "operating point: as the paper counts them, and plainly (convolutions and matrix products "
        "only).",
    )
    add_model(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: Namespace) -> None:
    """Print MACs per input, by part and operating point."""
    rows = _costs(args)
    if args.json:
        print_json({"model": args.model, "macs_per_input": rows})
        return
    for convention in CONVENTIONS:
        make_console().print(cost_table(args.model, rows, convention))


def cost_table(title: str, rows: Sequence[Mapping[str, Any]], convention: str) -> "Table":
    """Lay out MMACs per input: one row per operating point, one column per part."""
    from rich.table import Table

    table = Table(title=f"{title}\nMMAC per input, {CONVENTIONS[convention]}")
    table.add_column("operating point", justify="right")
    for part in rows[0][convention]:
        table.add_column(part, justify="right", style="bold" if part == "total" else None)
    for row in rows:
        table.add_row(row["point"], *map(mmac, row[convention].values()))
    return table


def _costs(args: Namespace) -> Sequence[Mapping[str, Any]]:
    """Look the costs up if they are those of a recipe as it stands, else count."""
    from mimonets.cli.open_models import find_config, find_network
    from mimonets.recipes.costs import known_costs

    named = find_network(args.model)
    as_it_stands = not (args.set or args.active_streams or args.imports)
    known = known_costs(named) if as_it_stands and isinstance(named, str) else None
    if known is not None:
        return known
    from mimonets.evaluation import count_points

    found = count_points(find_config(args.model, args.set), args.active_streams)
    return [cost.as_dict() for cost in found]
