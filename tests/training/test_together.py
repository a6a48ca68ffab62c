import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import mimonets as mn
from mimonets.training import TrainingInterrupted
from mimonets.training.launch import num_machines
from training import stopped_together, together
from training.tiny import same_weights

TESTS = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
slow = pytest.mark.slow
KINDS = ("conv", "former", "superposed")


def start(*arguments):
    """Start a first process, which starts the others itself."""
    command = [sys.executable, str(TESTS / "training/stopped_together.py"), *map(str, arguments)]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=ENVIRONMENT, text=True, **pipes)


def finish(process, seconds=900):
    out, errors = process.communicate(timeout=seconds)
    assert process.returncode == 0, errors
    return out, errors


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def same_training(found, wanted):
    for row, expected in zip(rows(found), rows(wanted), strict=True):
        assert row["step"] == expected["step"]
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert row["accuracy"] == pytest.approx(expected["accuracy"])


def check_kinds(folder, kinds):
    """Compare what several devices trained with what one does."""
    for kind in kinds:
        model, result = together.run(folder / "one" / kind, kind, 1)
        assert result.steps == 20
        same_training(folder / kind, result.run_dir)
        if kind == "superposed":
            continue  # the same loss: its folder does not know its layers
        wanted = model.state_dict()  # batch-norm statistics too
        for name, value in mn.load(folder / kind / "model").state_dict().items():
            torch.testing.assert_close(value, wanted[name], rtol=1e-3, atol=1e-4, msg=name)


def wait_for(condition, process, seconds=600):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def number_in(path):
    text = path.read_text() if path.exists() else ""
    return int(text or -1)


def stop_again_and_again(folder, seed, stops, devices, steps, pause, kinds=()):
    """Send signals at random moments to random processes; gives the steps that they stopped at."""
    rng = random.Random(seed)
    process, found, step = start(folder, devices, steps, pause, *kinds), [], 0
    try:
        for number in range(stops):
            beyond = step + rng.randint(1, 3)
            wait_for(lambda least=beyond: number_in(folder / "step-0") >= least, process)
            time.sleep(rng.uniform(0, 2 * pause))
            rank = rng.randrange(devices) if number else devices - 1
            signals = [signal.SIGTERM, signal.SIGINT]
            os.kill(number_in(folder / f"process-{rank}"), rng.choice(signals))
            step = int(process.stdout.readline().split("after step ")[1].split()[0])
            found.append(step)
        _, errors = finish(process)
    finally:
        process.kill()
    assert "Traceback" not in errors
    return found


def test_two_devices_train_what_one_does_and_a_signal_to_any_stops_both_at_one_step(tmp_path):
    options = {"devices": 2, "steps": 12, "pause": 0.05, "kinds": KINDS}
    (stopped_at,) = stop_again_and_again(tmp_path, 0, stops=1, **options)
    check_kinds(tmp_path, KINDS)
    assert 0 < stopped_at < 12
    _, result = stopped_together.run(tmp_path / "never", 1, 12)  # that nobody stopped
    same_training(tmp_path / "run", result.run_dir)


@slow
@pytest.mark.parametrize(
    ("devices", "kinds"),
    [(2, ("conv-cut", "next-token", "slimmable", "datamux")), (4, KINDS)],
    ids=str,
)
def test_several_devices_train_what_one_does(tmp_path, devices, kinds):
    stop_again_and_again(tmp_path, 0, 0, devices, 2, 0, kinds)
    check_kinds(tmp_path, kinds)


@slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("stops", "devices", "steps"), [(20, 2, 150), (4, 4, 60)])
def test_stops_at_random_moments_change_no_weight(tmp_path, stops, devices, steps):
    (tmp_path / "stopped").mkdir()
    (tmp_path / "whole").mkdir()
    found = stop_again_and_again(tmp_path / "stopped", 1, stops, devices, steps, pause=0.05)
    assert found == sorted(set(found))
    assert len(found) == stops
    assert found[-1] < steps
    assert stop_again_and_again(tmp_path / "whole", 1, 0, devices, steps, pause=0) == []
    stopped, whole = (mn.load(tmp_path / name / "run/model") for name in ("stopped", "whole"))
    assert same_weights(stopped, whole)


@slow
def test_a_run_of_two_processes_goes_on_in_one_and_back(tmp_path):
    """A checkpoint does not know how many wrote it."""
    steps = {"devices": 2, "steps": 30, "pause": 0.03}
    process = start(tmp_path, *steps.values())
    wait_for(lambda: number_in(tmp_path / "step-0") >= 9, process)
    process.kill()
    process.communicate()
    os.kill(number_in(tmp_path / "process-1"), signal.SIGKILL)

    def stop(step):
        if step == 18:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TrainingInterrupted, match="after step 19 of 30"):
        stopped_together.run(tmp_path / "run", 1, 30, stop)
    assert stop_again_and_again(tmp_path, 0, 0, **steps) == []
    _, result = stopped_together.run(tmp_path / "one", 1, 30)
    same_training(tmp_path / "run", result.run_dir)


def test_torchrun_says_how_many_machines_there_are(monkeypatch):
    assert num_machines() == 1
    monkeypatch.setenv("GROUP_WORLD_SIZE", "3")
    assert num_machines() == 3
