"""``mimonets simulate``: the server's policy under a load, without a server.

Simulate the policy of `mimonets serve` beside other rules: one fixed operating point, superpose
what waits, deadlines alone, and a switch between a big and a small network.

Examples:
  mimonets simulate                                      four streams, 8 ms a pass, 100 ms to answer
  mimonets simulate --workload mmpp --loads 1,2,3        in bursts
  mimonets simulate --trace arrivals.txt --loads 1,2     recorded arrivals, one time a line
  mimonets simulate --modes 1:0.93,2:0.92,4:0.90 --pass-ms 20 --slo-ms 200 --small 0.25:0.91
"""

import argparse
from argparse import Namespace
from pathlib import Path

from mimonets._files import write_json
from mimonets._show import show
from mimonets.cli._options import Parser, check_can_write, numbers, positive

DIGITS = {1: 0.9966, 2: 0.9933, 4: 0.9865}  # accuracies of digits-mimoconv-dynamic


def add_options(parser: Parser) -> None:
    """Take the options."""
    parser.add_argument(
        "--modes",
        type=accuracies,
        metavar="A:ACCURACY,...",
        help="operating points: active streams and their accuracies (those of "
        "digits-mimoconv-dynamic)",
    )
    parser.add_default("--pass-ms", 8.0, "time of a pass")
    parser.add_default("--call-ms", 0.2, "time of a call")
    parser.add_load()
    parser.add_theta()
    parser.add_argument(
        "--loads", type=numbers, metavar="0.5,1,2", help="offered load / slow capacity"
    )
    parser.add_argument(
        "--small",
        type=cost_and_accuracy,
        metavar="COST:ACCURACY",
        help="also switch to a plain network of that fraction of the cost",
    )
    parser.add_default("--requests", 10_000, "for each load", type=positive)
    parser.add_out()
    parser.add_argument("--plot", metavar="FILE", help="also draw a plot, such as policy.png")
    parser.add_json()


def run(args: Namespace) -> None:
    """Simulate every rule at every load."""
    from mimonets.evaluation.provenance import environment
    from mimonets.loadtest.comparison import (
        Comparison,
        compare,
        comparison_table,
        draw_comparison,
        spike,
    )
    from mimonets.loadtest.simulator import superposed_points
    from mimonets.serving.operating_points import ServiceTime, useful_points

    if not 0 < args.pass_ms < float("inf") or not 0 <= args.call_ms < float("inf"):
        raise ValueError(
            f"--pass-ms {args.pass_ms:g} and --call-ms {args.call_ms:g} must be numbers of "
            f"milliseconds, above 0 and at least 0."
        )
    for path in filter(None, (args.out, args.plot)):  # before it runs, not after
        check_can_write(path)
    time = ServiceTime(per_call=args.call_ms / 1000, per_pass=args.pass_ms / 1000)
    comparison = Comparison(
        points=tuple(useful_points(superposed_points(args.modes or DIGITS, time))),
        slo=args.slo_ms / 1000,
        workload=args.workload,
        trace=args.trace,
        requests=args.requests,
        seed=args.seed,
        theta=args.theta,
        small=args.small,
        **({"loads": args.loads} if args.loads else {}),
    )
    rows = compare(comparison)
    timelines = spike(comparison) if args.plot or args.out else {}
    record = {
        "environment": environment(),
        "settings": comparison.as_dict(),
        "rows": rows,
        "spike": timelines,
    }
    if args.out:
        write_json(Path(args.out), record)
    if args.plot:
        draw_comparison(rows, timelines, args.plot)
    show(record, lambda _: comparison_table(rows), as_json=args.json)


def cost_and_accuracy(text: str) -> tuple[float, float]:
    """Read a fraction of the cost and an accuracy, such as 0.25:0.98."""
    try:
        cost, accuracy = (float(word) for word in text.split(":"))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no COST:ACCURACY: write two fractions, as in 0.25:0.98"
        ) from None
    return cost, accuracy


def accuracies(text: str) -> dict[int, float]:
    """Read active streams and their accuracies, such as 1:0.99,4:0.95."""
    try:
        pairs = [word.split(":") for word in text.split(",")]
        found = {int(active): float(accuracy) for active, accuracy in pairs}
        if min(found) < 1 or not all(0 <= accuracy <= 1 for accuracy in found.values()):
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of modes with accuracies: write it as in 1:0.99,2:0.98,4:0.95"
        ) from None
    return found
