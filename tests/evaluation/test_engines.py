"""Engines in one race."""

import pytest

from mimonets import MIMOConvConfig
from mimonets.cli.main import main
from mimonets.evaluation import BenchSettings
from mimonets.evaluation.engines import bench_engines, check_engines

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)


def test_engines_race_each_other_and_the_plain_network(tmp_path):
    config = MIMOConvConfig(
        depth=10,
        width=1,
        initial_width=1,
        num_streams=2,
        in_channels=1,
        image_size=8,
        num_classes=5,
    )
    settings = BenchSettings(batch_size=4, rounds=2, warmup=1, threads=1)
    record = bench_engines(config, ["eager", "onnxruntime"], tmp_path, [2], settings)
    assert [(row["engine"], row["active_streams"]) for row in record["rows"]] == [
        ("eager", 2),
        ("eager", None),
        ("onnxruntime", 2),
        ("onnxruntime", None),
    ]
    eager, plain, _, other = record["rows"]
    assert plain["over_plain_eager"]["median"] == 1.0
    assert other["over_plain_same_engine"]["median"] == 1.0
    assert eager["over_plain_eager"] == eager["over_plain_same_engine"]
    assert all(row["share_of_products"] > 0 for row in record["rows"])
    memory = record["memory"]["onnxruntime"]
    assert memory["nothing"]["pss_megabytes"] < memory["one mode"]["pss_megabytes"]
    assert memory["one mode"]["first_answer_cpu_seconds"] > 0


def test_unknown_engines_are_refused(capsys):
    with pytest.raises(ValueError, match=r"no engine 'onnx' \(did you mean 'onnxruntime'\?\)"):
        check_engines(["eager", "onnx"])
    assert main(["bench", "digits-mimoconv-dynamic", "--engines", "eger"]) == 2
    assert "did you mean 'eager'?" in capsys.readouterr().err
