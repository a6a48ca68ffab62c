"""``mimonets predict``: labels and probabilities for image files.

Name the likeliest classes of images: PNG, JPEG, BMP, WebP or NumPy arrays, from files, folders or
standard input (-). They are brought to the size, colours and scale of the training data, and
neighbours share a pass.
"""

import io
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mimonets._show import make_console, make_table, print_json
from mimonets.cli._options import NETWORK_HELP, Parser, numbers, positive

MOST_BYTES = 2**26  # that are read from standard input


def add_options(parser: Parser) -> None:
    """Take the options."""
    parser.add_argument("model", metavar="NETWORK", help=NETWORK_HELP)
    parser.add_argument("images", nargs="+", metavar="FILE", help="a file, a folder, or -")
    parser.add_argument(
        "--active-streams", type=positive, metavar="A", help="inputs per pass (all streams)"
    )
    parser.add_default("--top", 3, "how many classes to name", type=positive, metavar="K")
    for name in ("mean", "deviation"):
        parser.add_argument(
            f"--{name}",
            type=numbers,
            metavar="X,...",
            help=f"the training data's {name} per channel, 0..255, if the model does not say",
        )
    parser.add_argument(
        "--crop",
        type=positive,
        metavar="N",
        help="side of the centre square that is cut out, likewise",
    )
    parser.add_imports()
    parser.add_json()


def run(args: Namespace) -> None:
    """Name the likeliest classes of every image."""
    from mimonets.cli.open_models import load_network
    from mimonets.evaluation.predict import check_spec, gives_values, predict, predict_values

    model = load_network(args.model)
    spec = check_spec(model, _described(model, args))
    names, pictures = zip(*_pictures(args.images), strict=True)
    if gives_values(model, spec):
        answers = predict_values(model, pictures, spec=spec, active_streams=args.active_streams)
        _print_values(args, names, answers)
        return
    found = predict(model, pictures, spec=spec, active_streams=args.active_streams, top=args.top)
    if args.json:
        print_json(
            [
                {"file": name, "classes": [asdict(guess) for guess in guesses]}
                for name, guesses in zip(names, found, strict=True)
            ]
        )
        return
    active = args.active_streams or model.num_streams
    columns = ("file", "class", "probability", "or")
    table = make_table(f"{args.model}, {active} inputs per pass", columns, words=(0, 1, 3))
    for name, (best, *others) in zip(names, found, strict=True):
        rest = ", ".join(f"{guess.label} {guess.probability:.1%}" for guess in others)
        table.add_row(name, best.label, f"{best.probability:.1%}", rest)
    make_console().print(table)


def _print_values(args: Namespace, names: Sequence[str], answers: Sequence[dict[str, Any]]) -> None:
    """Print numbers of every image: all of them as JSON, else few of them or their shape."""
    if args.json:
        print_json(
            [
                {"file": name, "values": {key: one.tolist() for key, one in values.items()}}
                for name, values in zip(names, answers, strict=True)
            ]
        )
        return
    for name, values in zip(names, answers, strict=True):
        for key, one in values.items():
            few = ", ".join(f"{number:.4g}" for number in one.ravel()[:8])
            more = "" if one.size <= 8 else f", ... ({' x '.join(map(str, one.shape))} numbers)"
            print(f"{name}  {key}: {few}{more}")


def _described(model: Any, args: Namespace) -> Any:
    """Add what the command line says to the description of the model's inputs."""
    said = {name: getattr(args, name) for name in ("mean", "deviation", "crop")}
    said = {name: value for name, value in said.items() if value is not None}
    if not said:
        return None
    return replace(getattr(model, "input_spec", None) or model.default_input_spec(), **said)


def _pictures(names: list[str]) -> Iterator[tuple[str, Any]]:
    """Read all images, one after the other."""
    from mimonets.data.images.reading import ENDINGS, read_array, read_image

    for name in names:
        if name == "-":
            content = sys.stdin.buffer.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise ValueError(f"Standard input holds more than {MOST_BYTES} bytes.")
            yield name, read_image(io.BytesIO(content), "standard input")
            continue
        place = Path(name)
        paths = [place]
        if place.is_dir():
            paths = sorted(p for p in place.iterdir() if p.suffix.lower() in (*ENDINGS, ".npy"))
            if not paths:
                raise ValueError(f"{name} holds no image ({', '.join((*ENDINGS, '.npy'))}).")
        for path in paths:
            if path.suffix.lower() == ".npy":
                pictures = read_array(path)
                for number, picture in enumerate(pictures):
                    title = f"{path} [{number}]" if len(pictures) > 1 else str(path)
                    yield title, picture
            else:
                yield str(path), read_image(path)
