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
            print_json(recipe.as_dict())
        else:
            print(recipe.as_yaml(), end="")
        return
    summaries = recipe_summaries()
    if args.json:
        print_json([{"name": name, "summary": summaries[name]} for name in summaries])
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
        print_json({"model": args.model, "macs_per_input": cost_dict(costs)})
        return
    for convention in CONVENTIONS:
        make_console().print(cost_table(args.model, costs, convention))


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
        print_json(record)
    if args.out:
        path = Path(args.out)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def train(args: Namespace) -> None:
    """Train a recipe, once or with several seeds."""
    from mimonets.recipes import load_recipe
    from mimonets.recipes.run import run_recipe, taste
    from mimonets.training import TrainingDivergedError

    overrides = [*args.set, *_data_override(args.data_dir)]
    if args.devices:
        overrides.append(f"train.devices={args.devices}")
    recipe = load_recipe(args.recipe, overrides)
    if args.taste:
        recipe = taste(recipe)
    folder = Path(args.out or f"runs/{recipe.name}{'-taste' if args.taste else ''}")
    results, rank = [], 0
    for number in range(args.seeds):
        seeded = recipe.with_seed(recipe.train.seed + number)
        run_dir = folder if args.seeds == 1 else folder / f"seed-{seeded.train.seed}"
        finished = args.resume and (run_dir / "result.json").exists()
        if not finished:
            try:
                rank = run_recipe(seeded, run_dir, resume=args.resume).rank
            except TrainingDivergedError as error:
                raise ValueError(str(error)) from error
        results.append(json.loads((run_dir / "result.json").read_text(encoding="utf-8")))
    if rank != 0:  # one of several processes: the first one speaks
        return
    summary = _summarise_seeds(results)
    if args.json:
        print_json({"recipe": recipe.name, "folder": str(folder), "modes": summary})
        return
    from mimonets.evaluation.report import seeds_table

    make_console().print(seeds_table(recipe.name, summary))
    first = folder if args.seeds == 1 else folder / f"seed-{recipe.train.seed}"
    print(f"The model is in {first / 'model'}. Next: mimonets evaluate {first}")


def evaluate(args: Namespace) -> None:
    """Measure a run's final model in every mode."""
    from mimonets.evaluation.report import accuracy_table
    from mimonets.recipes.run import measure_run

    measured = measure_run(
        args.folder, args.split, args.active_streams, _data_override(args.data_dir)
    )
    if args.json:
        print_json(
            {
                "folder": args.folder,
                "split": args.split,
                "modes": [
                    {**found.as_dict(), "macs_per_input": macs} for _, found, macs in measured
                ],
            }
        )
        return
    found = {mode: accuracy for mode, accuracy, _ in measured}
    costs = {mode: macs for mode, _, macs in measured}
    make_console().print(accuracy_table(f"{args.folder}, {args.split} data", found, costs))


def demo(args: Namespace) -> None:
    """Train a dynamic and a plain network on digits, and compare them in every mode."""
    from dataclasses import replace

    from mimonets.cli.demo import run_demo
    from mimonets.recipes import load_recipe

    recipes = [load_recipe(f"digits-{name}") for name in ("mimoconv-dynamic", "wideresnet")]
    if args.epochs:
        recipes = [replace(r, train=replace(r.train, epochs=args.epochs)) for r in recipes]
    record = run_demo(recipes, Path(args.out), make_console(quiet=args.json), progress)
    if args.json:
        print_json(record)


def _data_override(data_dir: str | None) -> list[str]:
    return [] if data_dir is None else [f"data.dir={json.dumps(data_dir)}"]


def _summarise_seeds(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and spread of the accuracy of each mode over the seeds."""
    import statistics

    modes = results[0]["final"]
    return [
        {
            "active_streams": int(mode),
            "accuracies": [result["final"][mode]["accuracy"] for result in results],
            "mean": statistics.mean(result["final"][mode]["accuracy"] for result in results),
            "deviation": statistics.stdev(result["final"][mode]["accuracy"] for result in results)
            if len(results) > 1
            else None,
        }
        for mode in modes
    ]


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
    with progress("timing", settings.warmup + settings.rounds) as advance:
        result = bench(configs, modes, settings, after_round=advance)
    costs = {
        name: count_macs(config, result.modes.get(name, 1)).paper
        for name, config in result.configs.items()
    }
    if not quiet:
        make_console().print(bench_table(result, costs))
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


def print_json(data: Any) -> None:
    """Print plain data for other programs."""
    print(json.dumps(data, indent=2))


def make_console(*, quiet: bool = False) -> Any:
    """Make a console that does not fold tables when the output is a file or a pipe."""
    import sys

    from rich.console import Console

    return Console(quiet=quiet) if sys.stdout.isatty() else Console(width=160, quiet=quiet)


@contextmanager
def progress(what: str, steps: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar on a terminal, nothing elsewhere; yields what advances it."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=steps)
        yield lambda: bar.advance(task)
