"""``mimonets export``: all operating points of a network for ONNX Runtime, OpenVINO or PyTorch.

Write all operating points of a network with one file of weights. Each is compared with PyTorch
before anything is written, and for a run its accuracy is measured on the test data.
mimonets.Engine(OUT) runs the folder, without PyTorch too.
"""

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from mimonets._show import make_console, make_table, print_json
from mimonets.cli._options import NETWORK_HELP, Parser

CALIBRATION_INPUTS = 512


def add_options(parser: Parser) -> None:
    """Take the options."""
    parser.add_argument("source", metavar="NETWORK", help=NETWORK_HELP)
    parser.add_argument("--out", required=True, metavar="OUT", help="the folder to write")
    parser.add_argument(
        "--format",
        action="append",
        choices=("onnx", "openvino", "pt2"),
        help="what to write; may be repeated (onnx, which both runtimes read)",
    )
    parser.add_argument(
        "--int8", action="store_true", help="also int8, calibrated on the run's training data"
    )
    parser.add_argument(
        "--recipe",
        metavar="NAME",
        help="whose data to calibrate and measure on; a run knows its own, and what ships does too "
        "(used with --int8 or --data-dir)",
    )
    what = "accuracy that int8 may cost at any operating point"
    parser.add_default("--max-loss", 0.3, what, metavar="POINTS")
    parser.add_points()
    parser.add_imports()
    parser.add_data()
    parser.add_json()


def run(args: Namespace) -> None:
    """Export a network, and say what each operating point is worth."""
    from mimonets.checkpoints import load
    from mimonets.checkpoints.shipped import card_accuracy
    from mimonets.cli.open_models import find_weights, weights_in
    from mimonets.inference import ExportOptions, export, read_manifest

    found = find_weights(args.source)
    source = weights_in(found)
    is_run = (found / "recipe.yaml").is_file()
    trained_with = _recipe(args, is_run)
    recipe = trained_with if is_run or args.recipe or args.int8 or args.data_dir else None
    if args.int8 and recipe is None:
        raise ValueError(
            f"--int8 is calibrated and checked on a run's data, and {args.source} does not say "
            f"which: pass the folder that `mimonets train` wrote, name the recipe of its data with "
            f"--recipe, or call mimonets.export with int8=..."
        )
    model = load(source)
    calibration, evaluation, validation, spec = None, None, None, None
    if recipe is not None:
        calibration, evaluation, validation, spec = _data(recipe, args.int8)
    chosen = [model.num_streams if mode is None else mode for mode in args.active_streams or ()]
    folder = export(
        model,
        args.out,
        formats=tuple(args.format or ("onnx",)),
        modes=chosen or None,
        int8=calibration,
        evaluation=evaluation,
        options=ExportOptions(
            validation=validation,
            accuracy=None if evaluation is not None else card_accuracy(source),
            max_loss=args.max_loss,
            inputs=None if evaluation is None else evaluation[0][0],
            input_spec=model.input_spec or spec,
            recipe=None if trained_with is None else trained_with.without_paths().as_dict(),
            tell=lambda line: print(line, file=sys.stderr, flush=True),
        ),
    )
    manifest = read_manifest(folder)
    if args.json:
        print_json(manifest.as_dict())
        return
    make_console().print(_table(folder, manifest))
    print(f"Next: mimonets.Engine({str(folder)!r}), or `mimonets serve {folder}`.")


def _recipe(args: Namespace, is_run: bool) -> Any:
    """Find the recipe that it was trained with, or that --recipe names; None if nobody knows."""
    from mimonets.cli.open_models import find_recipe

    try:
        return find_recipe(args.recipe or args.source).with_data_dir(args.data_dir)
    except ValueError:
        if args.recipe or is_run:
            raise
        return None


def _data(recipe: Any, int8: bool) -> tuple[list[Any] | None, list[Any], list[Any] | None, Any]:
    """Load what to calibrate and to evaluate on, and how inputs were prepared."""
    from mimonets.data import load_data
    from mimonets.recipes.execute import describe_inputs, make_batches, make_train_batches

    splits = load_data(recipe.data)
    training = make_train_batches(recipe, splits)
    calibration: list[Any] = []
    for batch in make_batches(splits.train, training).epoch(0) if int8 else ():
        calibration.append(batch)
        if sum(len(part[0]) for part in calibration) >= CALIBRATION_INPUTS:
            break
    evaluation = list(make_batches(splits.test, training).epoch(0))
    validation = None
    if splits.validation is not None:
        validation = list(make_batches(splits.validation, training).epoch(0))
    else:
        print(
            "No cascade thresholds: the run kept no validation data (data.validation=0).",
            file=sys.stderr,
        )
    return calibration if int8 else None, evaluation, validation, describe_inputs(recipe, training)


def _table(folder: Path, manifest: Any) -> Any:
    """Show the points: operations, accuracy in every precision, and the time of one group."""
    precisions = list(manifest.modes[0].accuracy)
    backends = list(manifest.modes[0].service_seconds)
    names = ["active", "MMAC/input", *(f"accuracy, {name}" for name in precisions)]
    names += [f"ms/group, {name}" for name in backends]
    title = f"{manifest.model} in {folder}: {', '.join(manifest.formats)}"
    table = make_table(title, names, words=())
    for mode in manifest.modes:
        table.add_row(
            str(mode.active_streams),
            f"{mode.macs_per_input / 1e6:.2f}",
            *(f"{mode.accuracy[name]:.2%}" for name in precisions),
            *(f"{1000 * mode.service_seconds[name][0][1]:.3g}" for name in backends),
        )
    return table
