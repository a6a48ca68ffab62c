"""``mimonets bench``: inputs per second at every operating point, against single-input networks.

Time the operating points of models against what one would run instead: for a MIMOConv the same
network with one stream and a plain WideResNet of the same depth and width, for a MIMOFormer the
Performer. All interleaved in one process, after a warm-up. Weights are random; speed does not
depend on them.
"""

from argparse import Namespace
from pathlib import Path
from typing import Any

from mimonets._files import write_json
from mimonets._show import make_console, print_json, progress
from mimonets.cli._options import Parser, check_can_write, positive


def add_options(parser: Parser) -> None:
    """Take the options."""
    parser.add_model(several=True)
    parser.add_json()
    parser.add_argument(
        "--batch-size",
        type=lambda text: [positive(size) for size in text.split(",")],
        default=[16],
        metavar="1,4,64",
        help="inputs per call, one size or several (16)",
    )
    parser.add_default("--rounds", 15, "timed rounds", type=positive)
    parser.add_default("--warmup", 2, "rounds before timing")
    parser.add_argument("--threads", type=positive, help="CPU threads (PyTorch's choice)")
    parser.add_default("--dtype", "float32", "", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--channels-last", action="store_true", help="NHWC memory layout")
    parser.add_argument("--compile", action="store_true", help="through torch.compile")
    parser.add_argument(
        "--no-keep-memory",
        dest="keep_memory",
        action="store_false",
        help="hand freed memory back to the system after every pass, as PyTorch does by itself",
    )
    parser.add_argument(
        "--engines",
        type=lambda text: text.split(","),
        default=["eager"],
        metavar="eager,openvino-int8",
        help="race in these engines: eager (the default), compiled, onnxruntime, openvino, "
        "openvino-bf16, onnxruntime-int8, openvino-int8",
    )
    parser.add_default("--device", "cpu", "such as cpu or cuda")
    parser.add_out()


def run(args: Namespace) -> None:
    """Time every operating point and what one would run instead."""
    from mimonets._device import choose_device
    from mimonets.cli.open_models import find_config
    from mimonets.evaluation import BenchSettings

    settings = BenchSettings(
        batch_sizes=tuple(args.batch_size),
        rounds=args.rounds,
        warmup=args.warmup,
        threads=args.threads,
        engines=tuple(args.engines),
        dtype=args.dtype,
        memory_format="channels_last" if args.channels_last else "contiguous_format",
        device=str(choose_device(args.device)),
        compile=args.compile,
        keep_memory=args.keep_memory,
    )
    configs = [find_config(model, args.set) for model in args.models]
    if args.out:  # before minutes of timing, not after
        check_can_write(args.out)
    result, record = _time(args.models, configs, args.active_streams, settings)
    if args.out:
        write_json(Path(args.out), record)
    if args.json:
        print_json(record)
    else:
        from mimonets.cli.report import bench_table, shares_line

        make_console().print(bench_table(result, record["macs_per_input"]))
        if result.time_shares:
            print(shares_line(result))


def _time(
    titles: list[str], configs: list[Any], points: list[int | None] | None, settings: Any
) -> tuple[Any, dict[str, Any]]:
    """Time all points; returns the result, and everything as plain data."""
    from dataclasses import asdict, replace

    import torch

    from mimonets.evaluation import bench, count_macs
    from mimonets.evaluation.provenance import environment

    settings = replace(settings, threads=settings.threads or torch.get_num_threads())
    with progress("timing", settings.warmup + settings.rounds) as advance:
        result = bench(configs, points, settings, after_round=advance)
    costs = {
        name: count_macs(one.network, one.point.number).paper
        for name, one in result.candidates.items()
    }
    return result, {
        "models": {
            title: asdict(getattr(config, "config", config))  # of a third-party network: its own
            for title, config in zip(titles, configs, strict=True)
        },
        "environment": environment(),
        **result.as_dict(),
        "macs_per_input": costs,
    }
