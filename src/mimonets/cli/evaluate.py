"""``mimonets evaluate``: accuracy of a trained model at every operating point."""

from argparse import Namespace
from typing import Any

from mimonets._show import make_console, print_json
from mimonets.cli._options import add_data, add_json, add_points


def add_parser(subparsers: Any) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "evaluate",
        help="accuracy of a trained model at every operating point",
        description="Measure a run's model on the test data, at every operating point: accuracy "
        "with its 95 % interval, by position in the group, calibration, and what it costs.",
    )
    parser.add_argument("folder", metavar="DIR", help="a run's folder")
    parser.add_argument("--split", choices=("test", "validation", "train"), default="test")
    parser.add_argument(
        "--which",
        choices=("best", "last"),
        help="which model: best on the validation data, or last; by default the one it kept",
    )
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, ... (cuda if there is one)")
    add_points(parser)
    add_data(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: Namespace) -> None:
    """Measure a run's model at every operating point."""
    from mimonets.cli.report import accuracy_table
    from mimonets.recipes.execute import measure_run
    from mimonets.training.run_folder import choose_model

    which, _ = choose_model(args.folder, args.which)
    measured = measure_run(
        args.folder,
        args.split,
        args.active_streams,
        args.data_dir,
        which=which,
        device=args.device,
    )
    if args.json:
        print_json(
            {
                "folder": args.folder,
                "model": which,
                "split": args.split,
                "modes": [
                    {"point": point.name, **found.as_dict(), "macs_per_input": macs}
                    for point, found, macs in measured
                ],
            }
        )
        return
    title = f"{args.folder}, {which} model, {args.split} data"
    make_console().print(accuracy_table(title, measured))
