"""The ``mimonets`` command: parses, calls one function, prints. Heavy imports happen there."""

import argparse
import logging
import os
import re
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from mimonets import __version__
from mimonets._extras import install_line
from mimonets._show import QUIET
from mimonets.cli._options import Parser, import_modules

EPILOG = """\
examples:
  mimonets recipes                                 list the named experiments
  mimonets cost cifar100-mimoconv-n4               MACs per input by part
  mimonets bench mnist-mimoconv-n16                inputs per second at every operating point
  mimonets train mnist-mimoconv-n4 --data-dir data    train, into runs/mnist-mimoconv-n4
  mimonets evaluate runs/mnist-mimoconv-n4         accuracy at every operating point
  mimonets predict mnist-n16 a.png                 what the image shows, by a network that ships
  mimonets export runs/mnist-mimoconv-n4 --out out    for ONNX Runtime and OpenVINO
  mimonets bounds plan --dim 64 --streams 4        what a width carries, by the paper's theorems
  mimonets demo                                    train and compare, in two minutes, offline
  mimonets reproduce                               the paper's tables and figures, ours beside them
  mimonets serve runs/demo/digits-writers-mimoconv-narrow    chooses the superposition by load
"""

COMMANDS = (  # each is a file here; in this order --help lists them
    *("recipes", "train", "evaluate", "predict", "export", "cost", "bench", "bounds"),
    *("superpose", "compare", "reproduce", "demo", "serve", "load", "simulate"),
)
NO_MEMORY = "not enough memory|can't allocate memory"  # how PyTorch says so


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch starts its threads
    parser = make_parser()
    args = parser.parse_args(arguments)
    if args.quiet:
        os.environ[QUIET] = "1"  # for processes that it starts too
    if args.verbose:
        logging.basicConfig(level=logging.DEBUG)
    try:
        import_modules(getattr(args, "imports", ()))
        return args.run(args) or 0  # some end with a code of their own
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "rich", "yaml", "jsonargparse"):
            raise
        line = "pip install torch" if error.name == "torch" else install_line("cli")
        print(f"mimonets {args.command}: error: this needs {error.name}: {line}.", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        if args.verbose:
            traceback.print_exc()
        print(f"mimonets {args.command}: error: {error}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not re.search(NO_MEMORY, str(error)):
            raise
        print(
            f"mimonets {args.command}: error: there is not enough memory for this: choose a "
            f"smaller network or batch.",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt as stop:
        if getattr(stop, "rank", 0):  # one of several processes: the first one speaks
            return 0
        how = "--resume resumes it." if args.command == "train" else "The same command resumes it."
        saved = getattr(stop, "saved", None)  # training says what it saved
        print(f"mimonets: stopped{f': {saved} {how}' if saved else ''}", file=sys.stderr)
        return 130
    return 0


class Completion(argparse.Action):
    """Prints a completion script, by shtab."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, shell: Any, __: Any = None) -> None:
        """Print the script and end."""
        try:
            import shtab
        except ModuleNotFoundError:
            parser.error(f"--completion needs shtab: {install_line('cli')}")
        print(shtab.complete(parser, shell))
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    """Describe every command."""
    parser = Parser(
        prog="mimonets",
        description="Computation in superposition: N inputs for the price of one.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"mimonets {__version__}")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress while it runs")
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="log what is done, and where an error came from",
    )
    parser.add_argument(
        "--completion",
        action=Completion,
        choices=("bash", "zsh", "tcsh"),
        help="print what completes commands and options in this shell, and stop; for bash: "
        'eval "$(mimonets --completion bash)"',
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    for name in COMMANDS:
        command = import_module(f"mimonets.cli.{name}")
        described = subparsers.add_parser(name, **read_help(command.__doc__ or ""))
        described.set_defaults(run=command.run)
        command.add_options(described)
    return parser


def read_help(text: str) -> dict[str, Any]:
    r"""Take the docstring of a command's file apart: what ``--help`` shows of it, and where.

    >>> read_help("``mimonets x``: do it.\n\nIn one\nway.\n\nExamples:\n  mimonets x\n")
    {'help': 'do it', 'description': 'In one way.', 'epilog': 'examples:\n  mimonets x\n'}
    """
    title, _, rest = text.partition("\n\n")
    about, found, examples = rest.partition("Examples:\n")
    return {
        "help": title.partition(": ")[2].rstrip(".\n"),
        "description": " ".join(about.split()),
        "epilog": found.lower() + examples,
    }


if __name__ == "__main__":
    sys.exit(main())
