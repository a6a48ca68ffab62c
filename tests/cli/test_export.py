"""The door to exporting."""

import json

import pytest
import torch

from mimonets import Engine, create, list_models, load, save
from mimonets.checkpoints.shipped import find_folder
from mimonets.cli.main import main
from mimonets.cli.open_models import find_recipe

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)


def test_a_saved_model_is_exported(tmp_path, capsys):
    save(create("datamuxconv", num_streams=3), tmp_path / "model")  # of few layers
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


@pytest.mark.slow
def test_a_shipped_model_is_exported_by_its_name(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["export", "digits", "--out", str(out), "--active-streams", "max", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["modes"][0]["active_streams"] == 4
    images = torch.rand(5, 1, 8, 8)
    with torch.no_grad():
        wanted = create("digits", pretrained=True)(images[:4])
    torch.testing.assert_close(Engine(out, "onnxruntime")(images)[:4], wanted)


def test_a_model_to_export_is_opened_by_its_name_or_its_folder(small_conv, tmp_path):
    assert load(find_folder("digits")).config == create("digits", pretrained=True).config
    save(small_conv, tmp_path / "digits")
    assert load(find_folder(tmp_path / "digits")).title == small_conv.title


@pytest.mark.parametrize("name", list_models())
def test_the_card_of_a_shipped_model_names_the_recipe_of_its_data(name):
    assert find_recipe(name).model == create(name, pretrained=True).config


@pytest.mark.slow
def test_int8_of_a_shipped_model_is_calibrated_on_the_data_of_its_recipe(tmp_path, capsys):
    pytest.importorskip("nncf")
    out = tmp_path / "out"
    assert main(["export", "digits", "--out", str(out), "--int8", "--json"]) == 0
    modes = json.loads(capsys.readouterr().out)["modes"]
    for mode in modes:
        assert mode["accuracy"]["float32"] > 0.9
        for precision in ("onnxruntime-int8", "openvino-int8"):
            assert mode["accuracy"][precision] >= mode["accuracy"]["float32"] - 0.003


def test_what_is_no_model_is_refused(tmp_path, capsys):
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "holds no config.json" in capsys.readouterr().err
