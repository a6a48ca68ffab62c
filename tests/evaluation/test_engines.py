"""Engines in one race."""

import pytest

from mimonets import MIMOConvConfig
from mimonets.cli.main import main
from mimonets.cli.report import bench_table
from mimonets.evaluation import BenchSettings, bench

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)


def test_engines_race_each_other_and_the_plain_network():
    config = MIMOConvConfig(
        depth=10,
        width=1,
        initial_width=1,
        num_streams=2,
        in_channels=1,
        image_size=8,
        num_classes=5,
    )
    engines = ("eager", "onnxruntime")
    settings = BenchSettings(batch_sizes=(4,), rounds=2, warmup=1, threads=1, engines=engines)
    result = bench(config, [2], settings)
    rows = {row["name"]: row for row in result.as_dict()["contenders"]}
    names = ["MIMOConv-10-1 (N=2), 2 active", "MIMOConv-10-1 (N=1)", "WideResNet-10-1"]
    assert list(rows) == [f"{engine}: {name}" for engine in engines for name in names]
    eager, other = (f"{engine}: WideResNet-10-1" for engine in engines)
    assert rows[eager]["speedup"][eager]["median"] == 1.0
    assert rows[other]["speedup"][other]["median"] == 1.0
    assert set(rows[other]["speedup"]) == {f"{e}: {name}" for e in engines for name in names[1:]}
    assert set(rows[eager]["speedup"]) == {f"eager: {name}" for name in names[1:]}
    assert [row["active_streams"] for row in rows.values()] == [2, None, None] * 2
    headings = [column.header for column in bench_table(result, {}).columns]
    assert {"× eager: WideResNet-10-1", "× WideResNet-10-1, same engine"} <= set(headings)


def test_unknown_engines_are_refused(capsys):
    with pytest.raises(ValueError, match="'onnx'.*did you mean 'onnxruntime'"):
        BenchSettings(engines=("eager", "onnx"))
    with pytest.raises(ValueError, match="onnxruntime takes float32 on a CPU: leave out dtype"):
        BenchSettings(engines=("onnxruntime",), dtype="bfloat16")
    assert main(["bench", "digits-mimoconv-dynamic", "--engines", "eger"]) == 2
    assert "did you mean 'eager'?" in capsys.readouterr().err
