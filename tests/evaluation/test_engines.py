"""Engines in one race."""

import pytest

from mimonets import DataMUXConvConfig
from mimonets.cli.main import main
from mimonets.cli.report import bench_table
from mimonets.evaluation import BenchSettings, bench

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)


def test_engines_race_each_other_and_the_network_with_one_stream():
    config = DataMUXConvConfig(num_streams=2)  # of few layers: three exports take seconds
    engines = ("eager", "onnxruntime")
    settings = BenchSettings(batch_sizes=(4,), rounds=2, warmup=1, threads=1, engines=engines)
    result = bench(config, [2], settings)
    rows = {row["name"]: row for row in result.as_dict()["contenders"]}
    names = ["DataMUXConv (N=2), 2 active", "DataMUXConv (N=1)"]
    assert list(rows) == [f"{engine}: {name}" for engine in engines for name in names]
    eager, other = (f"{engine}: {names[1]}" for engine in engines)
    assert rows[eager]["speedup"][eager]["median"] == 1.0
    assert rows[other]["speedup"][other]["median"] == 1.0
    assert set(rows[other]["speedup"]) == {eager, other}
    assert set(rows[eager]["speedup"]) == {eager}
    assert [row["active_streams"] for row in rows.values()] == [2, None] * 2
    headings = [column.header for column in bench_table(result, {}).columns]
    assert {f"× {eager}", f"× {names[1]}, same engine"} <= set(headings)


def test_unknown_engines_are_refused(capsys):
    with pytest.raises(ValueError, match="'onnx'.*did you mean 'onnxruntime'"):
        BenchSettings(engines=("eager", "onnx"))
    with pytest.raises(ValueError, match="onnxruntime takes float32 on a CPU: leave out dtype"):
        BenchSettings(engines=("onnxruntime",), dtype="bfloat16")
    assert main(["bench", "digits-mimoconv-dynamic", "--engines", "eger"]) == 2
    assert "did you mean 'eager'?" in capsys.readouterr().err
