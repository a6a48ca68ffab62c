"""``mimonets bounds``: the paper's theorems as numbers, each beside a simulation; plan a width.

Evaluate every bound of the paper in an example and simulate what it bounds: blessing of
dimensionality, dictionary cleanup, FAVOR+S between streams, norms of Hadamard products, Hoeffding.
A bound above 1 says nothing. Ours is what simulation finds, the paper's column has the bound.

Examples:
  mimonets bounds                                  every bound beside its simulation
  mimonets reproduce bounds; mimonets reproduce relu-kernel    the same as files and plots
  mimonets bounds plan --dim 64 --streams 4        what a width carries, what it does not
  mimonets bounds plan --dim 512 --streams 16 --items 100 --tokens 1024 --probability 0.01
"""

import argparse
from typing import Any

from mimonets._show import make_console, make_table, print_json, progress, show
from mimonets.cli._options import Parser

PLAN_DESCRIPTION = """\
Say how likely streams interfere at a width, how many streams it carries for a tolerated
probability, and what width a number of streams needs. For random keys, added up and read again:
the last lines say what that leaves out.
"""


def add_options(parser: Parser) -> None:
    """Take the options."""
    parser.add_default("--seed", 0, "of the simulations")
    parser.add_default("--samples", 5_000, "draws per simulated number")
    parser.add_json()
    for name in ("--dim", "--streams"):
        parser.add_argument(name, action=_OfThePlanner, help=argparse.SUPPRESS)

    topics = parser.add_subparsers(dest="topic", title="the planner", metavar="[plan]")
    plan = topics.add_parser(
        "plan",
        help="how many streams a width carries, and what width they need",
        description=PLAN_DESCRIPTION,
    )
    plan.add_argument(
        "--dim", type=int, required=True, metavar="D", help="width of the keys, such as 64"
    )
    plan.add_argument("--streams", type=int, required=True, metavar="N", help="inputs per pass")
    for name, default, meaning in (
        ("--angle", 70.0, "keys interfere within this angle, in degrees"),
        ("--probability", 0.05, "how much interference is tolerated"),
        ("--alpha", 0.5, "a value or score may be off by this fraction of itself"),
        ("--cosine", 1.0, "how well value and entry, or query and key, are aligned"),
        ("--items", 10, "dictionary entries, or classes"),
        ("--tokens", 1, "keys that one query is compared with"),
    ):
        plan.add_default(name, default, meaning)
    # SUPPRESS: a default here would undo the flag of "bounds --json plan".
    plan.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print JSON instead"
    )
    plan.set_defaults(run=run_plan)


class _OfThePlanner(argparse.Action):
    """An option that ``bounds plan`` has, given without ``plan``."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> None:
        parser.error(f"{self.option_strings[0]} belongs to the planner: mimonets bounds plan "
                     f"--dim 64 --streams 4")  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Simulate every bound and print it beside what was found."""
    from mimonets.experiments import find_experiment
    from mimonets.experiments.bounds_report import STEPS, compare_bounds, theory_report
    from mimonets.experiments.report import record_table

    with progress("simulating", len(STEPS)) as advance:
        report = theory_report(args.seed, args.samples, advance)
    record = find_experiment("bounds").record(*compare_bounds(report))
    show(record, record_table, as_json=args.json)


def run_plan(args: argparse.Namespace) -> None:
    """Answer what a width carries."""
    from mimonets.theory import plan

    found = plan(
        args.dim,
        args.streams,
        angle=args.angle,
        probability=args.probability,
        alpha=args.alpha,
        cosine=args.cosine,
        items=args.items,
        tokens=args.tokens,
    )
    if args.json:
        print_json(found.as_dict())
        return
    console = make_console()
    console.print(plan_table(found))
    console.print(
        f"Two random keys of width {found.dim} are within {found.angle:g}° (or beyond "
        f"{180 - found.angle:g}°) with probability {found.pair_probability:.3g} if bipolar; "
        f"the bound says at most {found.pair_bound:.3g}.",
        highlight=False,
    )
    console.print("\nWhat these bounds do not cover:", highlight=False)
    for text in found.not_covered:
        console.print(f"* {text}", highlight=False)


def plan_table(found: Any) -> Any:
    """Lay out the planner's lines."""
    from mimonets.theory.planner import MOST_STREAMS

    rows, columns = found.grid
    carries = f"streams width {found.dim} carries"
    needs = f"width {found.num_streams} streams need"
    table = make_table(
        f"Width {found.dim}, {found.num_streams} streams (attention: {rows} x {columns})",
        ("what may happen", "source", "probability at most", carries, needs),
        f"carried, needed: for a probability of at most {found.probability:g}",
        words=(0, 1),
    )
    for line in found.lines:
        carried = line.streams_carried
        table.add_row(
            line.question,
            line.source,
            f"{line.bound:.3g}" if line.bound <= 1 else "1 (says nothing)",
            f"{carried} or more" if carried >= MOST_STREAMS else str(carried),
            "over a million" if line.width_needed is None else str(line.width_needed),
        )
    return table
