"""The door to exporting."""

import json

import pytest

from mimonets import Engine, save
from mimonets.cli.main import main

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)


def test_a_saved_model_is_exported(small_conv, tmp_path, capsys):
    save(small_conv, tmp_path / "model")
    out = str(tmp_path / "out")
    arguments = ["export", str(tmp_path / "model"), "--out", out, "--active-streams", "max"]
    assert main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [mode["active_streams"] for mode in printed["modes"]] == [3]
    assert Engine(out, "onnxruntime").modes == (3,)


def test_int8_without_data_is_refused(small_conv, tmp_path, capsys):
    save(small_conv, tmp_path / "model")
    out = tmp_path / "out"
    assert main(["export", str(tmp_path / "model"), "--out", str(out), "--int8"]) == 2
    assert "calibrated and checked on a run's data" in capsys.readouterr().err
    assert not out.exists()


def test_what_is_no_model_is_refused(tmp_path, capsys):
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "holds no config.json" in capsys.readouterr().err
