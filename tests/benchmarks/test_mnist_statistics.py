"""The three ways to test a network differ in batch norm's statistics, and in nothing else."""

import json
import sys

import pytest
import torch

from benchmark_files import load_benchmark
from mimonets import load
from mimonets.recipes import load_recipe
from mimonets.recipes.execute import measure_run, run_recipe

TINY = ["model.width=1", "train.steps=4", "train.batch_size=8", "data.limit=64", "train.ema=null"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run_recipe(load_recipe("digits-mimoconv-dynamic", [*TINY, "train.mixup=0.5"]), folder)
    return folder


def test_each_way_uses_its_own_statistics(run, tmp_path, monkeypatch, capsys):
    script = load_benchmark("mnist_statistics")
    monkeypatch.setattr(sys, "argv", ["mnist_statistics.py", str(run), "--out", str(tmp_path)])
    script.main()
    record = json.loads((tmp_path / "mnist-statistics.json").read_text())
    assert set(record["by_seed"]["0"]) == set(script.WAYS)
    ((_, tested, _),) = measure_run(run, "test", [4], which="last")
    assert record["by_seed"]["0"]["unmixed"] == pytest.approx(100 * tested.accuracy)
    assert "statistics of each test batch" in capsys.readouterr().out


def test_weights_before_and_after_recalibration_differ_in_statistics_only(run):
    trained = torch.load(run / "checkpoints" / "last.pt", weights_only=True)["model"]
    kept = load(run / "model").state_dict()
    changed = {name for name in trained if not torch.equal(trained[name], kept[name])}
    assert changed
    statistics = ("running_mean", "running_var", "batches_seen", "batches_tracked")
    assert [name for name in changed if not name.endswith(statistics)] == []
