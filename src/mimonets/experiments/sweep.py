"""Run a plan: its rows and seeds one after the other, or side by side as tasks of Ray.

A Ray task is one run. It takes a GPU where there are any, else CPU cores. Ray starts a run anew,
elsewhere if need be, when its worker is lost, and the run resumes from its checkpoint. The lock of
a run's folder keeps two workers, or two people, from training it at the same time.
"""

import json
import os
import shlex
import socket
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mimonets._extras import need
from mimonets._messages import first_line
from mimonets.experiments.experiment import Record, RunOptions
from mimonets.experiments.plan import Plan, Trial
from mimonets.experiments.trained import (
    Outcome,
    attempt,
    plan_rows,
    read_run_record,
    run_folder,
    run_label,
)
from mimonets.experiments.verdict import Row
from mimonets.training.lock import HOLDER_FILE
from mimonets.training.progress import TrainingInterrupted, epoch_line, listening_for_stop

Job = tuple[Trial, int]  # a run: what is trained, with which seed
RETRIES = 5  # so often a run is started anew whose worker was lost
SAVE_SECONDS = 60.0  # that runs have to save when the command is interrupted


def measure_plan(plan: Plan, options: RunOptions) -> tuple[list[Row], Record]:
    """Train and test every trial with every seed; resume what an earlier call left unfinished."""
    plan = plan.scaled(options.scale)
    every = [(trial, seed) for trial in plan.trials for seed in trial.seeds]
    if not any(options.only in run_label(*job) for job in every):
        raise ValueError(
            f"No run of {plan.name} has {options.only!r} in its name: they are called "
            f"{', '.join(run_label(*job) for job in every[:3])}, ..."
        )
    outcomes = run_jobs(plan, choose_jobs(plan, options), options)
    failed = sorted(one.label for one in outcomes if one.state == "failed")
    found = [
        read_run_record(trial, seed, options.runs) or _earlier_run(trial, seed, options)
        for trial, seed in every
        if run_label(trial, seed) not in failed
    ]
    details: Record = {"scale": options.scale, "runs": [run for run in found if run is not None]}
    details |= {"settings": list(plan.settings)} if plan.settings else {}
    details |= {"failed": failed} if failed else {}
    return plan_rows(plan, details["runs"]), details


def choose_jobs(plan: Plan, options: RunOptions) -> list[Job]:
    """List the runs to train, teachers first; or, for a report, those that lack only their test."""
    named = [job for job in plan.jobs() if options.only in run_label(*job)]
    if not options.train:
        runs = options.runs
        finished = [job for job in named if (run_folder(*job, runs) / "result.json").exists()]
        return [job for job in finished if read_run_record(*job, runs) is None]
    missing = [job for job in named if not _earlier_run(*job, options)]
    wanted = {
        run_label(one, seed) for trial, seed in missing for one in (*plan.teachers_of(trial), trial)
    }
    return [job for job in plan.jobs() if run_label(*job) in wanted]


def run_jobs(plan: Plan, jobs: Sequence[Job], options: RunOptions) -> list[Outcome]:
    """Train all runs, each after its teacher, and sum up at the end what went wrong."""
    if options.workers is None or not jobs:
        outcomes = [attempt(*job, options) for job in jobs]
    else:
        outcomes = _run_on_ray(plan, jobs, options)
    reasons: dict[str, list[str]] = {}
    for one in outcomes:
        if one.state == "failed":
            reasons.setdefault(one.words, []).append(one.label)
    for words, labels in reasons.items():
        several = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
        options.tell(f"FAILED {labels[0]}{several}: {words}")
    left = [one.label for one in outcomes if one.state == "left"]
    if left:
        options.tell(
            f"left out {len(left)} runs, such as {left[0]}: run this again, or with --report, when "
            f"those that train them have ended"
        )
    return outcomes


def _earlier_run(trial: Trial, seed: int, options: RunOptions) -> Record | None:
    """Find the run among those of result files, tested in all that this trial is tested in."""
    mine = (run for run in options.earlier if run["trial"] in trial.names and run["seed"] == seed)
    points = {str(number) for number in trial.modes}
    found = (run for run in mine if "diverged" in run or points <= run.get("test", {}).keys())
    return next(found, None)


def _run_on_ray(plan: Plan, jobs: Sequence[Job], options: RunOptions) -> list[Outcome]:
    """Keep as many runs under way as were asked for, and collect what becomes of each."""
    ray = need("ray", extra="ray", what="Training several runs at a time (--workers)")
    there = replace(
        options,
        runs=options.runs.resolve(),
        data_dir=None if options.data_dir is None else options.data_dir.resolve(),
        earlier=(),
        tell=str,  # each task tells what it has to when it ends
    )
    waiting, outcomes = list(jobs), []
    tasks: dict[str, Any] = {}
    running: dict[Any, Job] = {}
    cores = max(os.cpu_count() or 1, (options.workers or 1) * options.cpus_per_run)
    with (
        ray_started(ray, cores),
        _seen_by_all(there.runs) as token,
        _progress(there.runs) as show,
        listening_for_stop() as stop,
    ):
        make_task = _task_maker(ray, jobs, options)
        most = f", at most {options.workers} at a time" if options.workers else ""
        options.tell(f"{len(jobs)} runs to train, test or skip on Ray{most}")
        while (waiting or running) and not stop:
            while waiting and not 0 < (options.workers or 0) <= len(running):
                trial, seed = job = waiting.pop(0)
                names = [run_label(teacher, seed) for teacher in plan.teachers_of(trial)]
                teachers = [tasks[name] for name in names if name in tasks]  # Ray waits for them
                reference = make_task(job).remote(*job, there, token, *teachers)
                tasks[run_label(*job)] = reference
                running[reference] = job
            done = ray.wait(list(running), timeout=1.0)[0]
            show(running.values())
            outcomes += [_collect(ray, one, running.pop(one), options) for one in done]
        if not stop or not (waiting or running):
            return outcomes
        for reference in running:
            ray.cancel(reference)  # training saves and ends
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=SAVE_SECONDS)
    interrupted = KeyboardInterrupt()
    interrupted.saved = f"What {len(running)} runs had trained is saved."  # type: ignore[attr-defined]
    raise interrupted


@contextmanager
def ray_started(ray: Any, cores: int) -> Iterator[None]:
    """Join the cluster that RAY_ADDRESS names, or start Ray here."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # workers give way to others by default
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        quiet |= {"address": "local", "num_cpus": cores, "include_dashboard": False}
    for again in (not address, False):  # its half a minute is too little for a busy machine
        try:
            ray.init(**quiet)
            break
        except Exception as error:  # Ray has many kinds of them
            ray.shutdown()
            if again:
                continue
            where = f"at RAY_ADDRESS={address}" if address else "on this machine"
            token = ", set RAY_AUTH_MODE=token if the cluster asks for one" if address else ""
            raise ValueError(
                f"Ray could not be started or reached {where}: {first_line(error)}. Try again"
                f"{token}, or leave out --workers."
            ) from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _seen_by_all(runs: Path) -> Iterator[Path]:
    """Leave a file that every worker must find: run folders belong where all machines see them."""
    runs.mkdir(parents=True, exist_ok=True)
    token = runs / f".sweep-{uuid.uuid4().hex}"
    token.touch()
    try:
        yield token
    finally:
        token.unlink(missing_ok=True)


def _task_maker(ray: Any, jobs: Sequence[Job], options: RunOptions) -> Callable[[Job], Any]:
    """Give the task of a run, which takes GPUs where there are any; refuse what fits nowhere."""
    gpus = ray.cluster_resources().get("GPU", 0) > 0
    if options.needs_gpu and not gpus:
        raise ValueError(
            "This plan needs a GPU, and Ray has found none: name a cluster that has some "
            "(RAY_ADDRESS), or start it here all the same with --anyway."
        )

    def needs(job: Job) -> dict[str, int]:
        devices = job[0].load(job[1]).train.devices
        return {"CPU": options.cpus_per_run * devices} | ({"GPU": devices} if gpus else {})

    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for wanted in {tuple(needs(job).items()) for job in jobs}:
        if not any(all(one.get(name, 0) >= count for name, count in wanted) for one in machines):
            words = " and ".join(f"{count} {name}s" for name, count in wanted)
            raise ValueError(
                f"A run takes {words}, more than any machine that Ray knows has: lower --devices "
                f"or --cpus-per-run."
            )
    remote = ray.remote(max_retries=RETRIES, retry_exceptions=False)(on_worker)

    def make(job: Job) -> Any:
        wanted = {f"num_{name.lower()}s": count for name, count in needs(job).items()}
        return remote.options(**wanted, name=run_label(*job))

    return make


def on_worker(
    trial: Trial, seed: int, options: RunOptions, token: Path, *teachers: object
) -> tuple[Outcome, list[str]]:
    """Train and test one run in a worker of Ray, after its teachers; says what to tell as well."""
    import torch

    if not token.exists():
        return Outcome(
            run_label(trial, seed),
            "failed",
            f"{socket.gethostname()} does not see {options.runs}: choose --runs on a file system "
            f"that all machines share",
        ), []
    torch.set_num_threads(options.cpus_per_run)
    lines: list[str] = []
    try:
        return attempt(trial, seed, replace(options, tell=lines.append)), lines
    except TrainingInterrupted:  # SIGTERM to this worker: Ray sees it lost and starts the run anew
        os._exit(1)


def _collect(ray: Any, reference: Any, job: Job, options: RunOptions) -> Outcome:
    """Get the outcome of a task that has ended, and tell what it told."""
    try:
        outcome, lines = ray.get(reference)
    except ray.exceptions.RayError as error:
        words = f"Ray lost its worker {RETRIES + 1} times ({first_line(error)})"
        outcome, lines = Outcome(run_label(*job), "failed", words), []
        options.tell(f"failed {outcome.label}: {words}")
    for line in lines:
        if not line.startswith("training "):  # it has ended
            options.tell(line)
    return outcome


@contextmanager
def _progress(runs: Path) -> Iterator[Callable[[Iterable[Job]], None]]:
    """On a terminal, show one line for each run that is under way."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)

    def lines(jobs: Iterable[Job]) -> str:
        folders = {job: run_folder(*job, runs) for job in jobs}
        begun = [job for job, folder in folders.items() if (folder / HOLDER_FILE).exists()]
        found = [f"{run_label(*job)}  {progress_line(*job, folders[job])}" for job in begun]
        waiting = len(folders) - len(begun)
        return "\n".join([*found, *([f"{waiting} wait for a worker"] if waiting else [])])

    if not console.is_terminal:
        yield lambda jobs: None
        return
    with Live(console=console, transient=True) as live:
        yield lambda jobs: live.update(lines(jobs))


def progress_line(trial: Trial, seed: int, folder: Path) -> str:
    """Say how far a run is, by the last line of its metrics."""
    try:
        with open(folder / "metrics.jsonl", "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            row = json.loads(file.read().splitlines()[-1])
        per_epoch = round(row["step"] / row["epoch"])
        return epoch_line(row, trial.load(seed).train.total_steps(per_epoch))
    except (OSError, ValueError, KeyError, IndexError):
        return "starting"


def array_script(plan: Plan, options: RunOptions, file: str) -> str:
    """Write the runs as a job array for Slurm: a run per task, requeued if it is preempted.

    Networks that teach others come first; those that they teach are submitted to wait for them.
    """
    plan = plan.scaled(options.scale)
    jobs = choose_jobs(plan, options)
    jobs.sort(key=lambda job: len(plan.teachers_of(job[0])))
    depths = Counter(len(plan.teachers_of(trial)) for trial, _ in jobs)
    submit, start = [], 0
    for count in depths.values():
        after = " --dependency=afterok:ID_OF_THE_JOB_BEFORE" if start else ""
        submit.append(f"#   sbatch --array={start}-{start + count - 1}{after} {shlex.quote(file)}")
        start += count
    devices = max(trial.load(seed).train.devices for trial, seed in jobs)
    lines = [trial.command(seed, options.runs, options.data_dir) for trial, seed in jobs]
    return "\n".join(
        [
            "#!/bin/bash",
            f"#SBATCH --job-name={plan.name}",
            f"#SBATCH --array=0-{len(jobs) - 1}",
            f"#SBATCH --gpus-per-node={devices}",
            f"#SBATCH --cpus-per-task={max(4, options.cpus_per_run) * devices}",
            "#SBATCH --requeue",
            "#SBATCH --signal=TERM@120",
            f"# {plan.title}. From the folder of the runs, which all machines see:",
            *submit,
            f"# then  mimonets reproduce {plan.name} --report --runs {options.runs}",
            "commands=(",
            *(f"  {shlex.quote(line)}" for line in lines),
            ")",
            'eval "exec ${commands[$SLURM_ARRAY_TASK_ID]}"  # SIGTERM reaches it, and it saves',
            "",
        ]
    )
