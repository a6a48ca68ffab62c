"""``mimonets reproduce``: the paper's tables and figures, ours beside the paper's."""

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from mimonets._show import make_console, print_json, progress
from mimonets.cli._options import fraction

PUBLISHED = Path("results")  # of a source checkout: what README and docs show

EPILOG = """\
examples:
  mimonets reproduce                                  list every table and figure
  mimonets reproduce cost-mimoconv                    count, compare, write the numbers down
  mimonets reproduce mnist --data-dir data            train what is missing, test, compare, plot
  mimonets reproduce mnist --only n16 --data-dir data   only the runs with n16 in their name
  mimonets reproduce mnist --scale 0.1 --data-dir data  with a tenth of the epochs
  mimonets reproduce mnist --report                   train nothing: report the runs there are
  mimonets reproduce mnist-map --speed --out results  inputs/s of its networks, and a plot
  mimonets reproduce mnist --report --add --out results   put new runs beside published ones
  mimonets reproduce my-plan.yaml                     a plan of your own
  mimonets reproduce lra --commands                   the same by hand, run by run
Training can be stopped at any time; the same command resumes it.
"""


def add_parser(subparsers: Any) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "reproduce",
        help="run the paper's experiments, and print ours beside the paper's",
        description="Run one of the paper's tables or figures: write NAME.json (command, commit, "
        "seeds, machine, every number) and a plot, and print ours beside the paper's.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="the experiment, or a plan of your own (a .yaml file); none: list them",
    )
    parser.add_argument(
        "--out", default="runs/results", metavar="DIR", help="where results are (%(default)s)"
    )
    parser.add_argument(
        "--runs", default="runs/reproduce", metavar="DIR", help="where runs are kept (%(default)s)"
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="where the original files of the data set are, or a folder with one folder for each",
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="train only runs with TEXT in their name, as in n16/seed-1; results stay as they are",
    )
    parser.add_argument(
        "--scale",
        type=fraction,
        default=1.0,
        metavar="F",
        help="train for this fraction of the epochs and steps, in runs of their own",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="train through torch.compile: half a minute's start, then often faster; needs a C++ "
        "compiler",
    )
    parser.add_argument("--report", action="store_true", help="train nothing, report what is there")
    parser.add_argument(
        "--add",
        action="store_true",
        help="add to the result in --out: keep its runs, such as another machine's, and train "
        "only what neither it nor another result there has",
    )
    parser.add_argument(
        "--speed", action="store_true", help="train nothing, time every network in each engine"
    )
    parser.add_argument("--commands", action="store_true", help="print how to do it by hand")
    parser.add_argument("--anyway", action="store_true", help="without the GPU that it needs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(args: Namespace) -> None:
    """List the experiments, or run one."""
    import torch

    from mimonets.experiments import RunOptions, earlier_runs, find_experiment

    if args.name is None:
        list_experiments(Path(args.out), as_json=args.json)
        return
    experiment = find_experiment(args.name)
    if args.commands:
        print("\n".join(experiment.commands or [f"mimonets reproduce {experiment.name}"]))
        return
    if args.speed:
        time_networks(experiment, args)
        return
    if experiment.needs_gpu and not (args.report or args.anyway or torch.cuda.is_available()):
        time = experiment.effort.removeprefix("GPU: ")
        raise ValueError(
            f"{experiment.name} needs a GPU ({time}) and there is none here. Run `mimonets "
            f"reproduce {experiment.name}` where there is one; --commands shows the "
            f"{len(experiment.commands)} commands in it, --anyway starts them on this machine."
        )
    trains = {"--scale": args.scale != 1, "--only": args.only, "--add": args.add}
    trains |= {"--compile": args.compile}
    for option in (name for name, given in trains.items() if given and not experiment.commands):
        raise ValueError(f"{experiment.name} trains nothing: leave out {option}.")
    if not args.only:
        experiment.check_result_stays(Path(args.out), args.scale)
    options = RunOptions(
        runs=Path(args.runs),
        data_dir=None if args.data_dir is None else Path(args.data_dir),
        only=args.only,
        train=not args.report,
        scale=args.scale,
        compile=args.compile,
        earlier=earlier_runs(experiment, Path(args.out)) if args.add else (),
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    record = experiment.run(options)
    if not args.only:
        for path in experiment.write(record, Path(args.out)):
            print(f"wrote {path}", file=sys.stderr)
    if args.json:
        print_json(record)
    else:
        from mimonets.experiments.report import record_table

        make_console().print(record_table(record))


def time_networks(experiment: Any, args: Namespace) -> None:
    """Time the networks of a plan; draw accuracy against speed where accuracies are there."""
    import json

    from mimonets._files import write_text
    from mimonets.experiments.speed import (
        SETTINGS,
        draw_against_speed,
        measure_plan_speed,
        speed_table,
    )

    if experiment.plan is None:
        raise ValueError(f"{experiment.name} has no networks to time: leave out --speed.")
    with progress("timing", SETTINGS.rounds + SETTINGS.warmup) as advance:
        speeds = measure_plan_speed(experiment.plan, args.only, after_round=advance)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    if not args.only:
        path = out / f"{experiment.name}-speed.json"
        write_text(path, json.dumps(speeds, indent=1) + "\n")
        print(f"wrote {path}", file=sys.stderr)
        accuracies = out / f"{experiment.name}.json"
        if accuracies.is_file():
            record = json.loads(accuracies.read_text(encoding="utf-8"))
            plot = draw_against_speed(record, speeds, path.with_suffix(".png"))
            print(f"wrote {plot}", file=sys.stderr)
    if args.json:
        print_json(speeds)
    else:
        make_console().print(speed_table(speeds))


def list_experiments(results: Path, *, as_json: bool) -> None:
    """Say what can be run, what it takes, and what your results or the published ones say."""
    from mimonets.experiments import experiments
    from mimonets.experiments.registry import ELSEWHERE
    from mimonets.experiments.report import experiments_table, standing

    if as_json:
        listed = [
            {
                "name": one.name,
                "source": one.source,
                "title": one.title,
                "effort": one.effort,
                "needs_gpu": one.needs_gpu,
                "status": standing(one, results, PUBLISHED),
                "commands": one.commands,
            }
            for one in experiments().values()
        ]
        print_json(listed)
        return
    make_console().print(experiments_table(list(experiments().values()), results, PUBLISHED))
    print("Also in the paper:")
    for what, where in ELSEWHERE.items():
        print(f"  {what}: {where}")
    print("mimonets reproduce NAME runs one; --commands shows it run by run.")
