import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mimonets as mn
from mimonets.training.launch import num_machines
from training import together

TESTS = Path(__file__).parents[1]


def run_in_two_processes(folder, *kinds):
    """Train one kind after the other; starting the processes takes longest."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = [sys.executable, str(TESTS / "training/together.py"), str(folder), "2", *kinds]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "kinds",
    [("conv", "geared"), pytest.param(("former", "conv-cut"), marks=pytest.mark.slow)],
    ids="+".join,
)
def test_two_processes_train_like_one_with_twice_the_batch(tmp_path, kinds):
    run_in_two_processes(tmp_path / "two", *kinds)
    for kind in kinds:
        together.run(tmp_path / "one" / kind, kind, 1)
        found, expected = (tmp_path / number / kind for number in ("two", "one"))
        for row, wanted in zip(rows(found), rows(expected), strict=True):
            assert row["step"] == wanted["step"]
            assert row["loss"] == pytest.approx(wanted["loss"], rel=1e-4)
            assert row["accuracy"] == pytest.approx(wanted["accuracy"])
        wanted = mn.load(expected / "model").state_dict()  # batch-norm statistics too
        for name, value in mn.load(found / "model").state_dict().items():
            torch.testing.assert_close(value, wanted[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.slow
def test_two_processes_warm_up_on_retrieval_and_go_on(tmp_path):
    # A mean over tokens is a little different in two halves, so this is not exactly one process.
    run_in_two_processes(tmp_path, "datamux")
    found = rows(tmp_path / "datamux")
    assert [row["step"] for row in found] == [3, 6, 9]
    assert all(math.isfinite(row["loss"]) for row in found)
    assert mn.load(tmp_path / "datamux/model").num_streams == 2


def test_torchrun_says_how_many_machines_there_are(monkeypatch):
    assert num_machines() == 1
    monkeypatch.setenv("GROUP_WORLD_SIZE", "3")
    assert num_machines() == 3
