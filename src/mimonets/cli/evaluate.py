"""``mimonets evaluate``: accuracy of a trained network at every operating point.

Measure a trained network on the test data of its recipe, at every operating point: accuracy with
its 95 % interval, by position in the group, calibration, and what it costs. MNIST networks are
measured on scikit-learn's digits where MNIST is not there.
"""

from argparse import Namespace

from mimonets._show import make_console, print_json
from mimonets.cli._options import NETWORK_HELP, Parser


def add_options(parser: Parser) -> None:
    """Take the options."""
    parser.add_argument("network", metavar="NETWORK", help=NETWORK_HELP)
    parser.add_argument("--split", choices=("test", "validation", "train"), default="test")
    parser.add_argument(
        "--which",
        choices=("best", "last"),
        help="which model of a run: best on the validation data, or last; by default the one it "
        "kept",
    )
    parser.add_argument(
        "--recipe", metavar="NAME", help="whose data to measure on, if the network does not say"
    )
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, ... (cuda if there is one)")
    parser.add_points()
    parser.add_data()
    parser.add_json()


def run(args: Namespace) -> None:
    """Measure a network at every operating point."""
    from mimonets._device import choose_device
    from mimonets.checkpoints import load
    from mimonets.cli.open_models import find_recipe, find_weights, labelled_batches, weights_in
    from mimonets.cli.report import accuracy_table
    from mimonets.recipes.execute import measure_points
    from mimonets.training.run_folder import choose_model

    folder, which = find_weights(args.network), None
    weights = weights_in(folder)
    if (folder / "recipe.yaml").exists():
        which, weights = choose_model(folder, args.which)
    elif args.which:
        raise ValueError(f"--which chooses a model of a run, and {args.network} is no run.")
    device = choose_device(args.device)
    model = load(weights, device=device)
    recipe = find_recipe(args.recipe or str(folder)).with_data_dir(args.data_dir)
    batches, data = labelled_batches(recipe, args.split, model.input_spec, device)
    measured = measure_points(model, batches, args.active_streams)
    if args.json:
        print_json(
            {
                "network": args.network,
                "model": which,
                "split": args.split,
                "data": data,
                "modes": [
                    {"point": point.name, **found.as_dict(), "macs_per_input": macs}
                    for point, found, macs in measured
                ],
            }
        )
        return
    title = f"{args.network}{f', {which} model' if which else ''}, {data}"
    make_console().print(accuracy_table(title, measured))
