"""``mimonets serve``: a server that chooses the operating point by load.

Answer requests with trained or exported networks. The server runs at the most accurate operating
point at which everything that waits is still answered in time. It speaks the Open Inference
Protocol v2 over HTTP and gRPC. SIGHUP loads the models again; SIGTERM answers what is queued and
stops.

Examples:
  mimonets serve runs/digits                     http://127.0.0.1:8000, with a page
  mimonets serve runs/digits --demo              with load from labelled digits, by a slider
  mimonets serve a=exported/a b=exported/b       two models in one server
  mimonets serve runs/big,runs/small             one model: a big and a small network by load
  mimonets serve exported --ray 2                two replicas on Ray Serve
  mimonets serve exported --slo-ms 50 --engine openvino --keys keys.json --host 0.0.0.0
"""

import argparse
import tempfile
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mimonets._extras import install_line, need
from mimonets._memory import keep_freed_memory
from mimonets.cli._options import NETWORK_HELP, Parser, fraction, positive, replicas

DEFAULT = "digits-keys"  # what is served if nothing is named: it ships with the package


def add_options(parser: Parser) -> None:
    """Take the options."""
    parser.add_argument(
        "models",
        nargs="*",
        metavar="[NAME=]NETWORK[,NETWORK]",
        help=f"{NETWORK_HELP} ({DEFAULT}); with commas: networks to switch between",
    )
    parser.add_slo()
    parser.add_theta()
    parser.add_imports()
    parser.add_default("--engine", "auto", "auto, torch, compiled, onnxruntime, openvino, ...")
    what = "auto, cpu, cuda or cuda:1; auto: a GPU where it is faster"
    parser.add_default("--device", "auto", what)
    parser.add_argument("--threads", type=positive, help="CPU threads of the network (cores - 1)")
    parser.add_argument(
        "--keep-memory",
        action="store_true",
        help="keep memory that PyTorch frees for the next pass: large networks run faster",
    )
    parser.add_default("--host", "127.0.0.1", "")
    parser.add_default("--port", 8000, "", type=port)
    parser.add_argument(
        "--grpc-port",
        type=port,
        metavar="PORT",
        help="also answer gRPC here, once models are loaded (8001 is usual)",
    )
    parser.add_argument(
        "--trace", metavar="URL", help="send OpenTelemetry spans there (http://localhost:4318)"
    )
    parser.add_argument(
        "--keys", metavar="FILE", help="JSON with API keys and tenants; needed beyond this host"
    )
    parser.add_argument(
        "--cascade",
        type=fraction,
        metavar="CONFIDENCE",
        help="fast answers below this confidence may run again at the slowest point, if a request "
        "asks for it (calibrated at export)",
    )
    parser.add_argument("--demo", action="store_true", help="a page with a load slider")
    parser.add_argument(
        "--ray",
        type=replicas,
        metavar="N|MIN-MAX",
        help="scale out: this many replicas on Ray Serve, each with its own queue",
    )
    parser.add_argument(
        "--gpus",
        type=float,
        metavar="F",
        help="GPUs of each replica with --ray, such as 0.5 (1 with --device cuda, else 0)",
    )
    parser.add_default("--max-inputs", 256, "most inputs of a request", type=positive)
    what = "most inputs that wait; of several tenants, each may have half"
    parser.add_default("--max-queued", 65_536, what, type=positive, metavar="INPUTS")


def run(args: Namespace) -> None:
    """Serve until told to stop."""
    try:
        from mimonets.serving.run import run_server
    except ImportError as error:
        raise ValueError(
            f"Serving needs more packages ({error.name}): {install_line('serve')}."
        ) from None
    from mimonets.cli.open_models import name_and_folders
    from mimonets.loadtest.demo import DemoLoad

    if args.ray:
        if args.grpc_port:
            raise ValueError("--grpc-port is for one server: leave it out, or leave out --ray.")
        _run_on_ray(args)
        return
    if args.grpc_port:
        what = "--grpc-port"
        for module in ("grpc", "tritonclient.grpc"):
            need(module, "grpcio and tritonclient", extra="grpc", what=what)
    if args.demo and args.keys:
        raise ValueError(
            "--demo sends a load of its own, which has no key: leave out --keys or --demo."
        )
    facts = _facts(args) if args.demo else {}
    if "plain" in facts and facts["plain"]["model"] not in args.models:
        args.models = [*(args.models or [DEFAULT]), facts["plain"]["model"]]
    server = make_server(args)
    chosen = ", ".join(server.loaders)
    address = f"http://{args.host}:{args.port}"
    if args.grpc_port:
        address += f" and, by gRPC, {args.host}:{args.grpc_port}"
    server.on_ready = lambda: print(f"Serving {chosen} at {address}. Ctrl-C stops.", flush=True)
    print(f"Loading {chosen} ...", flush=True)
    with tempfile.TemporaryDirectory() as place:
        demo = None
        if args.demo:
            name, folders = name_and_folders((args.models or [DEFAULT])[0])
            samples = write_samples(folders[0], Path(place) / "samples.npz")
            demo = DemoLoad(f"http://127.0.0.1:{args.port}/v2/models/{name}", str(samples), facts)
        run_server(server, host=args.host, port=args.port, demo=demo, grpc_port=args.grpc_port)


def port(text: str) -> int:
    """Read the number of a port."""
    if text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= 65535:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no port: choose an integer from 1 to 65535")


def make_server(args: Namespace) -> Any:
    """Make the server that the arguments describe; its models are loaded when it starts."""
    from mimonets.cli.open_models import name_and_folders, open_network
    from mimonets.inference.engine import available_cores
    from mimonets.serving.policy import PolicySettings
    from mimonets.serving.run import is_loopback
    from mimonets.serving.server import Server, ServerSettings
    from mimonets.serving.tenants import read_api_keys

    if args.keep_memory:
        keep_freed_memory()
    chosen = dict(name_and_folders(text) for text in args.models or [DEFAULT])
    if len(chosen) < len(args.models):
        raise ValueError("Two models have the same name: write NAME=DIR to name them.")
    threads = args.threads or max(1, available_cores() - 1)
    loaders = {
        name: partial(
            open_network,
            name,
            folders,
            args.engine,
            threads,
            cascade=args.cascade,
            device=args.device,
        )
        for name, folders in chosen.items()
    }
    tenants = read_api_keys(args.keys) if args.keys else None
    is_private = is_loopback(args.host) and tenants is None
    settings = ServerSettings(
        slo=args.slo_ms / 1000,
        policy=PolicySettings(theta=args.theta),
        max_inputs=args.max_inputs,
        max_queued_inputs=args.max_queued,
        hosts=("localhost", "127.0.0.1", "::1", args.host) if is_private else None,
    )
    server = Server(loaders, settings, tenants)
    if args.trace:
        what = ("opentelemetry-sdk and its exporter", "tracing", "--trace")
        for module in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
            need(module, what[0], extra=what[1], what=what[2])
        from mimonets.serving.tracing import Tracing, export_to

        server.tracing = Tracing(export_to(args.trace), server.clock)
    return server


def on_ray(settings: Mapping[str, str]) -> Any:
    """Make an application for ``serve run mimonets.cli.serve:on_ray models=DIR replicas=2``.

    Settings are the options of ``mimonets serve``, with _ for -; ``models`` are parted by spaces.
    """
    from mimonets.serving import ray

    words = settings.get("models", "").split()
    for name, value in settings.items():
        if name not in ("models", "replicas"):
            words += [f"--{name.replace('_', '-')}", str(value)]
    parser = Parser(prog="serve run mimonets.cli.serve:on_ray")
    add_options(parser)
    args = _absolute(parser.parse_args(words))
    many = replicas(str(settings.get("replicas", 2)))
    return ray.on_ray(
        partial(make_server, args), replicas=many, cpus=args.threads or 1, gpus=gpus_of(args)
    )


def gpus_of(args: Namespace) -> float:
    """Say how many GPUs a replica takes: none is visible to it otherwise."""
    if args.gpus is None:
        return float(args.device.startswith("cuda"))
    if not 0 <= args.gpus <= 64:
        raise ValueError(f"--gpus {args.gpus:g} must be between 0 and 64.")
    return float(args.gpus)


def _run_on_ray(args: Namespace) -> None:
    from mimonets.serving.ray import run_on_ray

    if args.demo:
        raise ValueError("--demo shows one server's queue: leave it out, or leave out --ray.")
    args = _absolute(args)
    args.threads = args.threads or 1
    make_server(args)  # mistakes are named here, not in a replica's log
    run_on_ray(
        partial(make_server, args),
        replicas=args.ray,
        cpus=args.threads,
        gpus=gpus_of(args),
        host=args.host,
        port=args.port,
    )


def _absolute(args: Namespace) -> Namespace:
    """Make all paths absolute: replicas run in another folder."""
    from mimonets.cli.open_models import name_and_folders

    named = (name_and_folders(text) for text in args.models or [DEFAULT])
    models = [f"{name}={','.join(str(f.resolve()) for f in folders)}" for name, folders in named]
    keys = str(Path(args.keys).resolve()) if args.keys else None
    return Namespace(**{**vars(args), "models": models, "keys": keys, "run": None})


def _facts(args: Namespace) -> dict[str, Any]:
    """Say for the page what runs, and which plain network of the same data ships beside it."""
    from mimonets._show import mmac
    from mimonets.checkpoints.shipped import pretrained_names
    from mimonets.cli.open_models import find_config, find_recipe, name_and_folders
    from mimonets.evaluation import count_macs
    from mimonets.models.registry import model_class_for

    def described(text: str) -> str:
        config = find_config(text)
        model = model_class_for(config)
        streams = getattr(config, "num_streams", 1)
        alone, together = (mmac(count_macs(config, active).paper) for active in (1, streams))
        if streams == 1:
            return f"{model.__name__}-{config.depth}-{config.width}, {alone} MMAC per input"
        tiles = getattr(config, "binding", "") == "tiles"
        how = (
            f"in tiles: {streams} inputs stand side by side, nothing is added up"
            if tiles
            else f"with keys: {streams} inputs are bound, added up and unbound"
        )
        return f"{model.__name__} {how}. {alone} MMAC per input alone, {together} in one pass"

    name, folders = name_and_folders((args.models or [DEFAULT])[0])
    facts: dict[str, Any] = {"network": f"{name} is a {described(str(folders[0]))}."}
    plain = f"{find_recipe(str(folders[0])).data.name.partition('-')[0]}-plain"
    if plain in pretrained_names():
        facts["plain"] = {"model": plain, "network": described(plain)}
    return facts


def write_samples(folder: Path, path: Path) -> Path:
    """Write labelled test images for the demo's load: of the data that a network was trained on."""
    import numpy as np

    from mimonets.cli.open_models import find_recipe, labelled_batches

    data = labelled_batches(find_recipe(str(folder)), "test")[0].data
    images = getattr(data, "images", None)
    if images is None:
        raise ValueError(f"--demo shows images, and {folder} takes sequences.")
    np.savez(path, inputs=images.numpy(), labels=data.labels.numpy())
    return path
