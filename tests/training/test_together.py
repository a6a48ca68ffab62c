import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mimonets as mn
from training import together

TESTS = Path(__file__).parents[1]


def run_in_two_processes(folder, kind):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = [sys.executable, str(TESTS / "training/together.py"), str(folder), kind, "2"]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "kind",
    [
        "conv",
        "geared",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("former", "conv-cut")),
    ],
)
def test_two_processes_train_like_one_with_twice_the_batch(tmp_path, kind):
    found = run_in_two_processes(tmp_path / "two", kind)
    together.run(tmp_path / "one", kind, 1)
    lines = (tmp_path / "one/metrics.jsonl").read_text().splitlines()
    for row, wanted in zip(found, map(json.loads, lines), strict=True):
        assert row["step"] == wanted["step"]
        assert row["loss"] == pytest.approx(wanted["loss"], rel=1e-4)
        assert row["accuracy"] == pytest.approx(wanted["accuracy"])
    two, one = mn.load(tmp_path / "two/model"), mn.load(tmp_path / "one/model")
    wanted = one.state_dict()  # batch-norm statistics too
    for name, value in two.state_dict().items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.slow
def test_two_processes_warm_up_on_retrieval_and_go_on(tmp_path):
    # A mean over tokens is a little different in two halves, so this is not exactly one process.
    rows = run_in_two_processes(tmp_path / "two", "datamux")
    assert [row["step"] for row in rows] == [3, 6, 9]
    assert all(math.isfinite(row["loss"]) for row in rows)
    assert mn.load(tmp_path / "two/model").num_streams == 2
