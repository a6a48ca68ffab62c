"""One short function per command. Each imports what it needs when it is called."""

import json
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def recipes(args: Namespace) -> None:
    """List the recipes, or show one."""
    from mimonets.recipes import load_recipe, recipe_summaries

    if args.name is not None:
        recipe = load_recipe(args.name)
        if args.json:
            _print_json(recipe.as_dict())
        else:
            print(recipe.as_yaml(), end="")
        return
    summaries = recipe_summaries()
    if args.json:
        _print_json([{"name": name, "summary": summaries[name]} for name in summaries])
        return
    heading = ""
    for name, summary in summaries.items():
        if summary != heading:
            heading = summary
            print(f"\n{heading}")
        print(f"  {name}")
    print("\nmimonets recipes NAME shows one with all its settings.")


def cost(args: Namespace) -> None:
    """Print MACs per input, by part and mode."""
    from mimonets.evaluation import count_modes
    from mimonets.evaluation.report import CONVENTIONS, cost_dict, cost_table
    from mimonets.recipes import model_config

    config = model_config(args.model, args.set)
    costs = count_modes(config, args.active_streams)
    if args.json:
        _print_json({"model": args.model, "macs_per_input": cost_dict(costs)})
        return
    for convention in CONVENTIONS:
        _console().print(cost_table(args.model, costs, convention))


def bench(args: Namespace) -> None:
    """Time every mode and what one would run instead."""
    from mimonets.evaluation import BenchSettings
    from mimonets.recipes import model_config

    settings = BenchSettings(
        batch_size=args.batch_size,
        rounds=args.rounds,
        warmup=args.warmup,
        threads=args.threads,
        dtype=args.dtype,
        memory_format="channels_last" if args.channels_last else "contiguous_format",
        device=args.device,
        compile=args.compile,
    )
    configs = [model_config(model, args.set) for model in args.models]
    record = _run_bench(args.models, configs, args.active_streams, settings, args.plot, args.json)
    if args.json:
        _print_json(record)
    if args.out:
        path = Path(args.out)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def demo(args: Namespace) -> None:
    """Show what the modes of a small model cost."""
    from mimonets.evaluation import BenchSettings
    from mimonets.models import MIMOConvConfig

    config = MIMOConvConfig(depth=16, width=4, num_streams=4, num_classes=10)
    print(
        "A MIMOConv-16-4 with 4 superposition streams, untrained: what its modes cost.\n"
        "Fast puts 4 different images into one pass, slow puts one image into all 4 streams."
    )
    plot = Path(args.out) / "throughput.png"
    _run_bench(["demo"], [config], [1, 2, 4], BenchSettings(rounds=12), plot, quiet=False)
    print(
        "Next: mimonets bench cifar100-mimoconv-n4 --active-streams 1,2,4   (the paper's network)"
    )


def _run_bench(
    titles: list[str],
    configs: list[Any],
    modes: list[int | None] | None,
    settings: Any,
    plot: str | Path | None,
    quiet: bool,
) -> dict[str, Any]:
    """Time, print a table and draw a plot; returns everything as plain data."""
    from dataclasses import asdict, replace

    import torch

    from mimonets.evaluation import bench, count_macs
    from mimonets.evaluation.environment import environment
    from mimonets.evaluation.report import bench_table, plot_bench, shares_line

    settings = replace(settings, threads=settings.threads or torch.get_num_threads())
    with _progress("timing", settings.warmup + settings.rounds) as advance:
        result = bench(configs, modes, settings, after_round=advance)
    costs = {
        name: count_macs(config, result.modes.get(name, 1)).paper
        for name, config in result.configs.items()
    }
    if not quiet:
        _console().print(bench_table(result, costs))
        if result.time_shares:
            print(shares_line(result))
    if plot:
        path = plot_bench(result, plot)
        if not quiet:
            print(f"Plot: {path}")
    return {
        "models": {title: asdict(config) for title, config in zip(titles, configs, strict=True)},
        "environment": environment(),
        **result.as_dict(),
        "macs_per_input": costs,
    }


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def _console() -> Any:
    """Make a console that does not fold tables when the output is a file or a pipe."""
    import sys

    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=160)


@contextmanager
def _progress(what: str, steps: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar on a terminal, nothing elsewhere; yields what advances it."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=steps)
        yield lambda: bar.advance(task)
