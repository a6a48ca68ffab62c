"""``mimonets reproduce``: run the paper's experiments, and print ours beside the paper's.

Run one of the paper's tables or figures: write NAME.json (command, commit, seeds, machine, every
number) and a plot, and print ours beside the paper's.

Examples:
  mimonets reproduce                                  list every table and figure
  mimonets reproduce cost-mimoconv                    count, compare, write the numbers down
  mimonets reproduce mnist --data-dir data            train what is missing, test, compare, plot
  mimonets reproduce mnist --only n16 --data-dir data   only the runs with n16 in their name
  mimonets reproduce mnist --scale 0.1 --data-dir data  with a tenth of the epochs
  mimonets reproduce mnist --report                   train nothing: report the runs there are
  mimonets reproduce mnist-map --speed --out results  inputs/s of its networks, and a plot
  mimonets reproduce mnist --report --add --out results   put new runs beside published ones
  mimonets reproduce my-plan.yaml                     a plan of your own
  mimonets reproduce cifar --workers auto             as many runs at a time as there are GPUs
  mimonets reproduce cifar --precision bf16 --out runs/bf16   every row in mixed precision
  mimonets reproduce lra --commands                   the same by hand, run by run
  mimonets reproduce lra --array lra.sbatch           the same as a job array of Slurm
Training can be stopped at any time; the same command resumes it.
"""

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from mimonets._show import make_console, print_json, show
from mimonets.cli._options import Parser, fraction, positive

if TYPE_CHECKING:
    from mimonets.experiments import Experiment, RunOptions
    from mimonets.experiments.plan import Plan

PUBLISHED = Path("results")  # of a source checkout: what README and docs show


def add_options(parser: Parser) -> None:
    """Take the options."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="the experiment, or a plan of your own (a .yaml file); none: list them",
    )
    parser.add_default("--out", "runs/results", "where results are", metavar="DIR")
    parser.add_default("--runs", "runs/reproduce", "where runs are kept", metavar="DIR")
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
    parser.add_set("every row, in runs of its own")
    parser.add_argument("--precision", choices=("32", "bf16"), help="train.precision of every row")
    for name in ("devices", "accumulate"):
        parser.add_argument(
            f"--{name}", type=positive, metavar="K", help=f"train.{name} of every row"
        )
    parser.add_argument(
        "--workers",
        type=workers,
        metavar="K|auto",
        help="train so many runs at a time, as tasks of Ray on this machine or on the cluster that "
        "RAY_ADDRESS names, a GPU each where there are any; auto: as many as fit",
    )
    what = "CPU cores of each run with --workers"
    parser.add_default("--cpus-per-run", 1, what, type=positive, metavar="K")
    parser.add_argument(
        "--report",
        action="store_true",
        help="train nothing, report what is there, runs of `mimonets train` included",
    )
    parser.add_argument(
        "--add",
        action="store_true",
        help="add to the result in --out: keep its runs, such as another machine's, and train "
        "only what neither it nor another result there has",
    )
    parser.add_argument(
        "--commands", action="store_true", help="print how to do it by hand, one line per run"
    )
    parser.add_argument(
        "--array", metavar="FILE", help="write these lines as a job array for Slurm's sbatch"
    )
    parser.add_argument("--anyway", action="store_true", help="without the GPU that it needs")
    parser.add_json()


def workers(text: str) -> int:
    """Read how many runs at a time; auto is 0, as many as fit."""
    return 0 if text == "auto" else positive(text)


def run(args: Namespace) -> int:
    """List the experiments, or run one; 1 if a run failed."""
    from mimonets.experiments import RunOptions, earlier_runs
    from mimonets.experiments.report import record_table

    if args.name is None:
        list_experiments(Path(args.out), as_json=args.json)
        return 0
    experiment = _chosen(args)
    needs_gpu = experiment.needs_gpu and not (args.report or args.anyway)
    options = RunOptions(
        runs=Path(args.runs),
        data_dir=None if args.data_dir is None else Path(args.data_dir),
        only=args.only,
        train=not args.report,
        scale=args.scale,
        workers=args.workers,
        cpus_per_run=args.cpus_per_run,
        needs_gpu=needs_gpu,
        earlier=earlier_runs(experiment, Path(args.out)) if args.add else (),
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    if args.commands or args.array:
        show_commands(experiment.plan, experiment.name, options, args.array)
        return 0
    if args.workers is None and needs_gpu:
        _check_gpu(experiment)
    if not args.only:
        experiment.check_result_stays(Path(args.out), args.scale)
    if experiment.plan is not None and options.train:
        tell_needs(experiment.plan.scaled(args.scale))
    record = experiment.run(options)
    if not args.only:
        for path in experiment.write(record, Path(args.out)):
            print(f"wrote {path}", file=sys.stderr)
    show(record, record_table, as_json=args.json)
    return 1 if record.get("failed") else 0


def tell_needs(plan: "Plan") -> None:
    """Say before anything is trained what that takes; row by row where it takes a GPU."""
    from mimonets.experiments.cost import plan_needs, total_needs
    from mimonets.experiments.report import needs_table

    rows = plan_needs(plan, count=plan.needs_gpu)
    if plan.needs_gpu:
        make_console(stderr=True).print(needs_table(plan.title, rows))
    elif rows:
        print(f"{plan.name}: {total_needs(rows)}", file=sys.stderr)


def _chosen(args: Namespace) -> "Experiment":
    """Find the experiment, with the settings that the options change in all its rows."""
    from mimonets.experiments import find_experiment
    from mimonets.experiments.registry import trained

    experiment = find_experiment(args.name)
    settings = [*args.set]
    for name in ("precision", "devices", "accumulate"):
        value = getattr(args, name)
        settings += [] if value is None else [f"train.{name}={value}"]
    given = {"--scale": args.scale != 1, "--only": args.only, "--add": args.add}
    given |= {f"--{name}": getattr(args, name) for name in ("set", "precision")}
    given |= {"--devices": args.devices, "--accumulate": args.accumulate, "--array": args.array}
    given |= {"--workers": args.workers is not None}
    if experiment.plan is None:
        for option in (name for name, value in given.items() if value):
            raise ValueError(f"{experiment.name} trains nothing: leave out {option}.")
        return experiment
    return trained(experiment.plan.changed(settings)) if settings else experiment


def _check_gpu(experiment: "Experiment") -> None:
    import torch

    if not torch.cuda.is_available():
        time = experiment.effort.removeprefix("GPU: ")
        raise ValueError(
            f"{experiment.name} needs a GPU ({time}) and there is none here. Run `mimonets "
            f"reproduce {experiment.name}` where there is one; --commands shows the "
            f"{len(experiment.commands)} commands in it, --anyway starts them on this machine."
        )


def show_commands(plan: "Plan | None", name: str, options: "RunOptions", array: str | None) -> None:
    """Print one line per run, or write them as a job array."""
    if plan is None:
        print(f"mimonets reproduce {name}")
        return
    from mimonets.experiments.sweep import array_script, choose_jobs

    if array:
        Path(array).write_text(array_script(plan, options, array), encoding="utf-8")
        print(f"wrote {array}: its first lines say how to submit it", file=sys.stderr)
        return
    for trial, seed in choose_jobs(plan.scaled(options.scale), options):
        print(trial.command(seed, options.runs, options.data_dir))


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
