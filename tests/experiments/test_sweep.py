"""A plan's runs: one after the other, side by side on Ray, by hand, interrupted and failing."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.test_trained import PLAN, TRIAL
from mimonets.cli.main import main
from mimonets.experiments import RunOptions
from mimonets.experiments.sweep import (
    _task_maker,
    choose_jobs,
    measure_plan,
    on_worker,
    progress_line,
    ray_started,
)
from mimonets.experiments.trained import attempt, run_folder
from mimonets.recipes.execute import run_recipe
from mimonets.training.lock import HOLDER_FILE, FolderLock

ONE = replace(TRIAL, seeds=(0,))


def test_a_run_that_fails_is_reported_and_the_others_go_on(tmp_path):
    lost = replace(ONE, name="lost", settings=(*ONE.settings, "data.name=svhn"))
    told = []
    options = RunOptions(runs=tmp_path, data_dir=tmp_path / "none", tell=told.append)
    _, details = measure_plan(replace(PLAN, trials=(lost, ONE)), options)
    assert details["failed"] == ["lost/seed-0"]
    assert [run["trial"] for run in details["runs"]] == ["small"]
    assert told[-1].startswith("FAILED lost/seed-0: ")


def test_an_error_of_the_program_leaves_its_traceback_beside_the_run(tmp_path, monkeypatch):
    def fall_over(*_, **__):
        raise RuntimeError("a wire is loose\nmore")

    monkeypatch.setattr("mimonets.experiments.trained.run_recipe", fall_over)
    outcome = attempt(ONE, 0, RunOptions(runs=tmp_path))
    assert outcome.state == "failed"
    details = tmp_path / "small" / "seed-0.error.txt"
    assert outcome.words == f"a wire is loose; more is in {details}"
    assert "fall_over" in details.read_text()


def test_a_run_that_others_train_is_left_to_them_and_so_is_what_it_teaches(tmp_path):
    folder = tmp_path / "small" / "seed-0"
    folder.mkdir(parents=True)
    others = FolderLock(folder)
    others.acquire()
    taught = replace(ONE, name="small,taught", teacher="small")
    told = []
    plan = replace(PLAN, trials=(ONE, taught))
    _, details = measure_plan(plan, RunOptions(runs=tmp_path, tell=told.append))
    others.release()
    assert details == {"scale": 1.0, "runs": []}, "nothing failed"
    assert f"by process {os.getpid()}" in told[1]
    assert "left out small,taught/seed-0: its teacher was not trained" in told
    assert told[-1].startswith("left out 2 runs, such as small/seed-0: run this again")


def test_runs_trained_by_hand_count_in_a_report(tmp_path):
    run_recipe(TRIAL.load(1), run_folder(TRIAL, 1, tmp_path))
    told = []
    rows, details = measure_plan(PLAN, RunOptions(runs=tmp_path, train=False, tell=told.append))
    assert [(run["trial"], run["seed"]) for run in details["runs"]] == [("small", 1)]
    assert rows[0].seeds == 1
    assert told[0].startswith("tested small/seed-1: ")


def test_settings_for_all_rows_make_runs_of_their_own():
    taught = replace(ONE, name="small,taught", teacher="small")
    plan = replace(PLAN, trials=(ONE, taught))
    settings = ["train.precision=bf16", "train.threads=2", "data.dir=a/b"]
    small, other = plan.changed(settings).trials
    assert small.name == "small,precision=bf16", "threads and folders change nothing"
    assert (other.name, other.teacher) == ("small,taught,precision=bf16", "small,precision=bf16")
    assert small.load(0).train.precision == "bf16"
    assert plan.changed(settings).settings == ("train.precision=bf16",)
    assert plan.changed(settings[1:]).settings == ()
    jobs = choose_jobs(plan.changed(settings), RunOptions(only="taught"))
    assert [trial.name for trial, _ in jobs] == [small.name, other.name], "its teacher too"


def test_results_of_other_settings_are_not_replaced(tmp_path, capsys):
    record = {"runs": [{"trial": "x", "seed": 0}], "settings": ["train.precision=bf16"], "rows": []}
    (tmp_path / "svhn.json").write_text(json.dumps(record))
    assert main(["reproduce", "svhn", "--report", "--out", str(tmp_path)]) == 2
    assert "trained with train.precision=bf16, and would be replaced" in capsys.readouterr().err


def test_without_ray_one_learns_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    place = ("--runs", str(tmp_path / "runs"), "--out", str(tmp_path))
    assert main(["reproduce", "demo-seeds", "--workers", "2", *place]) == 2
    assert "(--workers) needs ray" in (said := capsys.readouterr().err)
    assert "mimonets[ray]" in said


def test_a_ray_that_does_not_start_is_one_sentence(tmp_path, capsys, monkeypatch):
    def init(**_):
        raise ConnectionError("no room\nmore")

    ray = SimpleNamespace(init=init, shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    place = ("--runs", str(tmp_path / "runs"), "--out", str(tmp_path))
    assert main(["reproduce", "demo-seeds", "--workers", "2", *place]) == 2
    said = capsys.readouterr().err
    assert "Ray could not be started or reached at RAY_ADDRESS=head:6379: no room. Try" in said
    assert "set RAY_AUTH_MODE=token if" in said


def test_ray_is_started_once_more_if_that_takes_too_long(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    started = []

    def init(**options):
        started.append(options)
        if len(started) == 1:
            raise RuntimeError("The current node timed out during startup.")

    ray = SimpleNamespace(init=init, shutdown=lambda: None)
    with ray_started(ray, 3):
        assert [one["num_cpus"] for one in started] == [3, 3]


def test_a_machine_that_does_not_see_the_runs_says_so(tmp_path):
    outcome, _ = on_worker(ONE, 0, RunOptions(runs=tmp_path), tmp_path / ".sweep-0")
    assert outcome.state == "failed"
    assert f"does not see {tmp_path}: choose --runs on a file system" in outcome.words


def machines_with(**resources):
    """A Ray that knows one machine, and gives the options of a task in place of the task."""
    machine = {"Alive": True, "Resources": resources}
    task = type("Task", (), {"options": lambda _, **options: options})()
    return SimpleNamespace(
        cluster_resources=lambda: resources,
        nodes=lambda: [machine],
        remote=lambda **_: lambda function: task,
    )


def test_a_run_takes_gpus_where_there_are_any_and_cores_elsewhere():
    two = ONE.changed(["train.devices=2"])
    options = RunOptions(cpus_per_run=3, needs_gpu=True)
    make = _task_maker(machines_with(CPU=8, GPU=2), [(ONE, 0), (two, 0)], options)
    assert make((ONE, 0)) == {"num_cpus": 3, "num_gpus": 1, "name": "small/seed-0"}
    assert make((two, 0)) == {"num_cpus": 6, "num_gpus": 2, "name": "small/seed-0"}
    make = _task_maker(machines_with(CPU=8), [(two, 0)], replace(options, needs_gpu=False))
    assert make((two, 0)) == {"num_cpus": 6, "name": "small/seed-0"}
    with pytest.raises(ValueError, match="needs a GPU.*RAY_ADDRESS.*--anyway"):
        _task_maker(machines_with(CPU=8), [(ONE, 0)], options)
    with pytest.raises(ValueError, match="6 CPUs and 2 GPUs.*lower --devices or --cpus-per-run"):
        _task_maker(machines_with(CPU=8, GPU=1), [(two, 0)], options)


def test_a_line_says_how_far_a_run_is(tmp_path):
    assert progress_line(TRIAL, 0, tmp_path) == "starting"
    row = {"epoch": 1, "step": 7, "loss": 0.5, "accuracy": 0.75, "inputs_per_second": 1000.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert progress_line(TRIAL, 0, tmp_path).startswith("epoch 1  step 7/14  loss 0.500")


# On Ray itself, with workers that are processes of this machine.

TOY = """\
source: ours
title: Toy
effort: a minute
shared: {seeds: %d}
templates:
  - &set {train.epochs: %d, train.batch_size: 16, model.width: 1, model.initial_width: 1}
trials:
  - {title: n4, recipe: digits-mimoconv-n4, set: *set}
  - {title: dynamic, recipe: digits-mimoconv-dynamic, set: *set}
"""


@pytest.fixture
def start(tmp_path):
    pytest.importorskip("ray", reason="needs ray: pip install 'mimonets[ray]'")
    started = []

    def begin(*more, seeds=2, epochs=2, runs="runs", stderr=subprocess.PIPE):
        (tmp_path / "toy.yaml").write_text(TOY % (seeds, epochs))
        command = [sys.executable, "-m", "mimonets.cli.main", "reproduce", "toy.yaml"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("RAY_ADDRESS", None)
        process = subprocess.Popen(
            [*command, "--runs", runs, "--out", f"{runs}-out-{len(started)}", *more],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            text=True,
            env=environment,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def steps_of(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def wait_for_holders(runs: Path, count=1, seconds=300):
    """Wait until runs are under way, and give the processes that train them."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = runs.glob(f"*/*/{HOLDER_FILE}")
        begun = [path for path in found if (path.parent / "checkpoints" / "last.pt").exists()]
        if len(begun) >= count:
            return {path.parent: json.loads(path.read_text())["process"] for path in begun}
        time.sleep(0.05)
    raise AssertionError(f"no run began in {seconds} s")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_worker_loses_no_run(start, tmp_path):
    process = start("--workers", "2", epochs=10)
    (folder, worker), *_ = wait_for_holders(tmp_path / "runs").items()
    os.kill(worker, signal.SIGKILL)
    said = process.communicate(timeout=500)[1]
    assert process.returncode == 0, said
    record = json.loads((tmp_path / "runs-out-0" / "toy.json").read_text())
    assert len(record["runs"]) == 4
    steps = steps_of(folder)
    assert steps == sorted(set(steps)), "it resumed: no epoch is there twice"
    assert len(steps) == 10


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_commands_at_once_train_nothing_twice(start, tmp_path):
    both = [start("--workers", "2", epochs=4) for _ in range(2)]
    first = {}  # when each run was seen to have finished
    while any(process.poll() is None for process in both):
        for path in (tmp_path / "runs").glob("*/*/result.json"):
            first.setdefault(path, path.stat().st_mtime_ns)
        time.sleep(0.05)
    said = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert len(first) == 4
    for path, written in first.items():
        assert path.stat().st_mtime_ns == written, "it was trained again"
        steps = steps_of(path.parent)
        assert len(steps) == len(set(steps)) == 4
    # Together they have everything; whoever reports last sees all of it.
    last = start("--report", epochs=4)
    last.communicate(timeout=200)
    assert last.returncode == 0
    assert len(json.loads((tmp_path / "runs-out-2" / "toy.json").read_text())["runs"]) == 4


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sweep_that_is_stopped_saves_and_resumes(start, tmp_path, number):
    process = start("--workers", "2", epochs=20)
    held = wait_for_holders(tmp_path / "runs", count=2)
    process.send_signal(number)
    said = process.communicate(timeout=200)[1]
    assert process.returncode == 130, said
    assert "What 2 runs had trained is saved. The same command resumes it." in said
    assert not any((folder / HOLDER_FILE).exists() for folder in held), "they ended by themselves"
    before = {folder: (folder / "metrics.jsonl").read_text() for folder in held}
    again = start("--workers", "2", epochs=20)
    said = again.communicate(timeout=500)[1]
    assert again.returncode == 0, said
    for folder, rows in before.items():
        assert (folder / "metrics.jsonl").read_text().startswith(rows)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_workers_take_two_thirds_of_the_time(start):
    if os.getloadavg()[0] > 0.7:
        pytest.skip("other processes keep the cores busy")
    seconds = []
    for runs, more in (("alone", ()), ("together", ("--workers", "2"))):
        began = time.monotonic()
        process = start(*more, seeds=6, epochs=40, runs=runs, stderr=subprocess.DEVNULL)
        assert process.wait(700) == 0
        seconds.append(time.monotonic() - began)
    print(f"one after the other {seconds[0]:.0f} s, two workers {seconds[1]:.0f} s")
    assert seconds[1] < 0.65 * seconds[0]
