"""The ``mimonets`` command: parses, calls one function, prints. Heavy imports happen there."""

import argparse
import os
import sys
from collections.abc import Sequence

from mimonets import __version__
from mimonets.cli import commands, reproduce
from mimonets.cli.bounds import add_bounds

EPILOG = """\
examples:
  mimonets recipes                                 list the named experiments
  mimonets cost cifar100-mimoconv-n4               MACs per input by part, in every mode
  mimonets bench mnist-mimoconv-n16                inputs per second in every mode
  mimonets train mnist-mimoconv-n4 --data-dir data    train, into runs/mnist-mimoconv-n4
  mimonets evaluate runs/mnist-mimoconv-n4         accuracy in every mode
  mimonets bounds plan --dim 64 --streams 4        what a width carries, by the paper's theorems
  mimonets demo                                    train and compare, in two minutes, offline
  mimonets reproduce                               the paper's tables and figures, ours beside them
"""

SET_HELP = "override a setting of the recipe, as in --set model.width=2; may be repeated"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch starts its threads
    parser = make_parser()
    args = parser.parse_args(arguments)
    try:
        args.run(args)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as error:
        print(f"mimonets {args.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:  # training says what it saved and how to go on
        print(f"mimonets: stopped{f': {stop}' if str(stop) else ''}", file=sys.stderr)
        return 130
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Describe every command."""
    parser = argparse.ArgumentParser(
        prog="mimonets",
        description="Computation in superposition: N inputs for the price of one.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mimonets {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    recipes = subparsers.add_parser("recipes", help="list the recipes, or show one")
    recipes.add_argument("name", nargs="?", help="the recipe to show")
    _add_json(recipes)
    recipes.set_defaults(run=commands.recipes)

    cost = subparsers.add_parser(
        "cost",
        help="MACs per input by part, in every mode",
        description="Count multiply-accumulates per input by part of the network, in every mode: "
        "as the paper counts them, and plainly (convolutions and matrix products only).",
    )
    _add_model(cost)
    _add_json(cost)
    cost.set_defaults(run=commands.cost)

    bench = subparsers.add_parser(
        "bench",
        help="inputs per second in every mode, against single-input networks",
        description="Time the modes of models against what one would run instead: for a MIMOConv "
        "the same network with one stream and a plain WideResNet of the same depth and width, for "
        "a MIMOFormer the Performer. All interleaved in one process, after a warm-up. Weights are "
        "random; speed does not depend on them.",
    )
    _add_model(bench, several=True)
    _add_json(bench)
    bench.add_argument(
        "--batch-size", type=_positive, default=16, help="inputs per call (%(default)s)"
    )
    bench.add_argument("--rounds", type=_positive, default=15, help="timed rounds (%(default)s)")
    bench.add_argument("--warmup", type=int, default=2, help="rounds before timing (%(default)s)")
    bench.add_argument("--threads", type=_positive, help="CPU threads (PyTorch's choice)")
    bench.add_argument(
        "--dtype", default="float32", choices=("float32", "bfloat16", "float16"), help="%(default)s"
    )
    bench.add_argument("--channels-last", action="store_true", help="NHWC memory layout")
    bench.add_argument("--compile", action="store_true", help="through torch.compile")
    bench.add_argument("--device", default="cpu", help="such as cpu or cuda (%(default)s)")
    bench.add_argument("--out", metavar="FILE", help="also write everything as JSON to FILE")
    bench.add_argument("--plot", metavar="FILE", help="also draw a plot, such as speed.png")
    bench.set_defaults(run=commands.bench)

    train = subparsers.add_parser(
        "train",
        help="train a recipe",
        description="Train a recipe into a run folder: settings, environment, metrics, "
        "checkpoints and the final model. Ctrl-C saves; --resume goes on, to the same weights.",
    )
    train.add_argument("recipe", metavar="RECIPE", help="a recipe's name")
    train.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE", help=SET_HELP)
    train.add_argument("--out", metavar="DIR", help="the run's folder (runs/RECIPE)")
    train.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    train.add_argument("--seeds", type=_positive, default=1, metavar="K", help="train K times")
    train.add_argument("--devices", type=_positive, metavar="K", help="processes on this machine")
    train.add_argument("--taste", action="store_true", help="a minute's worth of it, to try it out")
    _add_data(train)
    _add_json(train)
    train.set_defaults(run=commands.train)

    evaluate = subparsers.add_parser(
        "evaluate",
        help="accuracy of a trained model in every mode",
        description="Measure a run's final model on the test data: accuracy with its 95 % "
        "interval, by position in the group, calibration, and what the mode costs.",
    )
    evaluate.add_argument("folder", metavar="DIR", help="a run's folder")
    evaluate.add_argument("--split", choices=("test", "validation", "train"), default="test")
    _add_modes(evaluate)
    _add_data(evaluate)
    _add_json(evaluate)
    evaluate.set_defaults(run=commands.evaluate)

    add_bounds(subparsers)

    demo = subparsers.add_parser(
        "demo",
        help="train a dynamic and a plain network on handwritten digits, and compare them",
        description="Train a MIMOConv with four streams and a single-input network of the same "
        "size on scikit-learn's handwritten digits, offline, in about two minutes; then show "
        "accuracy, speed and cost of every mode, and a plot.",
    )
    demo.add_argument("--out", default="runs/demo", metavar="DIR", help="(%(default)s)")
    demo.add_argument("--epochs", type=_positive, metavar="K", help="of training (30 and 60)")
    _add_json(demo)
    demo.set_defaults(run=commands.demo)

    reproduce.add_parser(subparsers)
    return parser


def _add_model(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    what = "a recipe's name or a saved model"
    if several:
        what += "; several that take the same inputs run in one race"
        parser.add_argument("models", nargs="+", metavar="RECIPE|DIR", help=what)
    else:
        parser.add_argument("model", metavar="RECIPE|DIR", help=what)
    parser.add_argument(
        "--set", action="append", default=[], metavar="SETTING=VALUE", help=SET_HELP
    )
    _add_modes(parser)


def _add_modes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--active-streams",
        type=_modes,
        metavar="1,2,max",
        help="only these modes; max is all streams of the model",
    )


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir", metavar="DIR", help="where the original files of the data set are"
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _modes(text: str) -> list[int | None]:
    words = dict.fromkeys(text.split(","))
    try:
        return [None if word == "max" else int(word) for word in words]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of modes: write whole numbers with commas, as in 1,2,4 or 1,max"
        ) from None


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
