"""``mimonets serve``: the server that changes gear by load, with a page."""

import argparse
import json
import os
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from mimonets._extras import install_line
from mimonets.cli._options import add_imports, positive

EPILOG = """\
examples:
  mimonets serve runs/digits                     http://127.0.0.1:8000, with a page
  mimonets serve runs/digits --demo              with load from labelled digits, by a slider
  mimonets serve a=exported/a b=exported/b       two models in one server
  mimonets serve runs/big,runs/small             one model: a big and a small network by load
  mimonets serve exported --slo-ms 50 --engine openvino --keys keys.json --host 0.0.0.0
"""


def add_parser(subparsers: Any) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "serve",
        help="a server that chooses the superposition by load",
        description="Answer requests from trained or exported networks: the most accurate mode in "
        "which everything that waits is still answered in time. Speaks the Open Inference "
        "Protocol v2 over HTTP; SIGHUP loads the models again, SIGTERM drains and stops.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "models",
        nargs="*",
        metavar="[NAME=]DIR[,DIR]",
        help="a run, a saved model, an export or the name of a shipped model (the digits network); "
        "with commas: networks to switch between",
    )
    parser.add_argument("--slo-ms", type=float, default=100.0, help="time to answer (%(default)s)")
    parser.add_argument(
        "--theta",
        type=float,
        default=0.6,
        help="part of that time that the queue may use; less is faster, more is more accurate "
        "(%(default)s)",
    )
    add_imports(parser)
    parser.add_argument("--engine", default="auto", help="what runs the networks (%(default)s)")
    parser.add_argument("--threads", type=positive, help="CPU threads of the network (cores - 1)")
    parser.add_argument("--host", default="127.0.0.1", help="%(default)s")
    parser.add_argument("--port", type=int, default=8000, help="%(default)s")
    parser.add_argument("--keys", metavar="FILE", help="JSON: who may ask; needed beyond this host")
    parser.add_argument(
        "--cascade",
        type=float,
        metavar="CONFIDENCE",
        help="fast answers below it may run again in slow mode, for requests that ask for it",
    )
    parser.add_argument("--demo", action="store_true", help="a page with a load slider")
    parser.add_argument("--max-inputs", type=positive, default=256, help="of a request")
    parser.set_defaults(run=run)


def run(args: Namespace) -> None:
    """Serve until told to stop."""
    try:
        from mimonets.serving.run import is_loopback, run_server
    except ImportError as error:
        raise ValueError(
            f"Serving needs more packages ({error.name}): {install_line('serve')}."
        ) from None
    from functools import partial

    from mimonets.serving.demo import DemoLoad
    from mimonets.serving.policy import PolicySettings
    from mimonets.serving.server import Server, ServerSettings
    from mimonets.serving.tenants import read_keys

    chosen = dict(name_and_folders(text) for text in args.models or ["digits"])
    if len(chosen) < len(args.models):
        raise ValueError("Two models have the same name: write NAME=DIR to name them.")
    threads = args.threads or max(1, (os.cpu_count() or 2) - 1)
    loaders = {
        name: partial(open_network, name, folders, args.engine, threads, args.cascade)
        for name, folders in chosen.items()
    }
    tenants = read_keys(args.keys) if args.keys else None
    is_private = is_loopback(args.host) and tenants is None
    settings = ServerSettings(
        slo=args.slo_ms / 1000,
        policy=PolicySettings(theta=args.theta),
        max_inputs=args.max_inputs,
        hosts=("localhost", "127.0.0.1", "::1", args.host) if is_private else None,
    )
    server = Server(loaders, settings, tenants)
    address = f"http://{args.host}:{args.port}"
    server.on_ready = lambda: print(
        f"Serving {', '.join(chosen)} at {address}. Ctrl-C stops.", flush=True
    )
    print(f"Loading {', '.join(chosen)} ...", flush=True)
    with tempfile.TemporaryDirectory() as place:
        demo = None
        if args.demo:
            name, folders = next(iter(chosen.items()))
            samples = write_samples(folders[0], Path(place) / "samples.npz")
            demo = DemoLoad(f"http://127.0.0.1:{args.port}/v2/models/{name}", str(samples))
        run_server(server, host=args.host, port=args.port, demo=demo)


def name_and_folders(text: str) -> tuple[str, list[Path]]:
    """Read NAME=DIR,DIR; without a name it is the folder's.

    >>> name_and_folders("a=runs/x,runs/y")
    ('a', [PosixPath('runs/x'), PosixPath('runs/y')])
    >>> name_and_folders("runs/digits/model")[0]
    'digits'
    """
    name, found, rest = text.partition("=")
    folders = [_folder(part) for part in (rest if found else text).split(",")]
    if not found:
        whole = folders[0].resolve()
        name = whole.parent.name if whole.name == "model" else whole.name
    return name, folders


def _folder(text: str) -> Path:
    """Find a folder, or the weights that ship with the package under that name."""
    from mimonets.models.pretrained import pretrained_folder, pretrained_names

    is_shipped = not Path(text).exists() and text in pretrained_names()
    return pretrained_folder(text) if is_shipped else Path(text)


def open_network(
    name: str, folders: list[Path], backend: str, threads: int, cascade: float | None = None
) -> Any:
    """Open what is to be served as one model."""
    from mimonets.serving.networks import superposed, switched

    opened = [_open(folder, backend, threads) for folder in folders]
    if len(opened) == 1:
        engine, accuracies, modes = opened[0]
        confidences = {} if cascade is None else dict.fromkeys(modes, cascade)
        return superposed(name, engine, accuracies, confidences, modes)
    labels = [f"{number}: {folder.name}" for number, folder in enumerate(folders)]
    return switched(
        name,
        {label: engine for label, (engine, _, _) in zip(labels, opened, strict=True)},
        {
            label: found[1]
            for label, (_, found, _) in zip(labels, opened, strict=True)
            if 1 in found
        },
    )


def _open(folder: Path, backend: str, threads: int) -> tuple[Any, dict[int, float], list[int]]:
    """Open a run, a saved model or an export: an engine, accuracies, and modes worth serving."""
    from mimonets.inference import Engine

    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: pass a run, a saved model or an export.")
    if (folder / "manifest.json").exists():
        engine = Engine(folder, backend, threads)
        precision = engine.backend if "int8" in engine.backend else "float32"
        accuracies = {}
        for mode in engine.manifest.modes:
            if mode.accuracy:
                found = mode.accuracy.get(precision, next(iter(mode.accuracy.values())))
                accuracies[mode.active_streams] = found
        known = [mode for mode in engine.modes if mode in accuracies]
        return engine, accuracies, known or list(engine.modes)

    import mimonets as mn
    from mimonets.layers.stream_norm import untrained_modes
    from mimonets.models.base import Model

    weights = folder / "model" if (folder / "model" / "config.json").exists() else folder
    model = mn.load(weights)
    if model.input_spec is None and isinstance(model, Model):  # others say by their example
        model.input_spec = _described(weights)
    engine = Engine(model, "torch" if backend == "auto" else backend, threads)
    accuracies = _accuracies(weights)
    trained = [mode for mode in engine.modes if mode not in set(untrained_modes(model))]
    known = [mode for mode in trained if mode in accuracies]
    return engine, accuracies, known or trained or list(engine.modes)


def _run_folder(weights: Path) -> Path | None:
    """Find the run that a saved model belongs to."""
    folder = weights.resolve().parent
    return folder if (folder / "recipe.yaml").exists() else None


def _described(weights: Path) -> Any:
    """Describe the inputs of a model that was saved before models did so themselves."""
    run_folder = _run_folder(weights)
    if run_folder is None:
        return None
    from mimonets.recipes.execute import describe_inputs, read_run, split_batches

    recipe = read_run(run_folder)
    return describe_inputs(recipe, split_batches(recipe, "train"))


def _accuracies(weights: Path) -> dict[int, float]:
    run_folder = _run_folder(weights)
    if run_folder is None or not (run_folder / "result.json").exists():
        return {}
    result = json.loads((run_folder / "result.json").read_text(encoding="utf-8"))
    found = result.get("final") or {}
    return {int(mode): entry["accuracy"] for mode, entry in found.items()}


def write_samples(folder: Path, path: Path) -> Path:
    """Write labelled test images of a run for the demo's load."""
    import numpy as np

    weights = folder / "model" if (folder / "model" / "config.json").exists() else folder
    run_folder = _run_folder(weights)
    from mimonets.recipes import load_recipe
    from mimonets.recipes.execute import read_run, split_batches

    if run_folder is not None:
        recipe = read_run(run_folder)
    elif folder.name.startswith("digits"):
        # Digits by other writers than those it was trained on; they ship with scikit-learn.
        recipe = load_recipe("digits-writers-tiles-dynamic")
    else:
        raise ValueError(f"--demo needs the run that {folder} came from, for its test images.")
    data = split_batches(recipe, "test").data
    images = getattr(data, "images", None)
    if images is None:
        raise ValueError(f"--demo shows images, and {folder} takes sequences.")
    np.savez(path, inputs=images.numpy(), labels=data.labels.numpy())
    return path
