"""int8: what it costs is measured, and refused if it is too much."""

import json

import numpy as np
import pytest
import torch

from mimonets import Engine, export
from mimonets.inference.manifest import read_manifest
from mimonets.inference.quantise import give_each_layer_its_own_bias

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)


@pytest.fixture(scope="module")
def data(small_conv):
    """Inputs whose labels are the network's own answers: float32 is always right."""
    images = torch.randn(48, 1, 8, 8)
    with torch.no_grad():
        return images, small_conv(images, active_streams=3).argmax(-1)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_int8_answers_nearly_as_float32_and_says_what_it_costs(small_conv, data, tmp_path, runtime):
    if runtime == "openvino":
        pytest.importorskip("nncf")
    folder = export(
        small_conv,
        tmp_path / "out",
        int8=(runtime,),
        calibration=[data[0]],
        evaluation=[data],
        max_loss=15,
        modes=(3,),
        measure=False,
    )
    manifest = read_manifest(folder)
    accuracy = manifest.mode(3).accuracy
    assert accuracy["float32"] == 1.0
    assert 0.85 <= accuracy[f"{runtime}-int8"] <= 1.0
    notes = manifest.formats["onnx-int8" if runtime == "onnxruntime" else "openvino-int8"].notes
    assert notes["calibration_inputs"] == 48
    assert notes["reduced_range"] is not manifest.cpu["vnni"]
    engine = Engine(folder, f"{runtime}-int8")
    found = engine(data[0].numpy(), 3)
    wanted = Engine(folder, "torch")(data[0].numpy(), 3)
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert 1e-5 < error < 0.2  # rounded, and not far off


def test_int8_of_several_modes_from_calibration_that_is_read_once(small_conv, data, tmp_path):
    folder = export(
        small_conv,
        tmp_path / "out",
        int8=("onnxruntime",),
        calibration=(images for images in data[:1]),
        evaluation=[data],
        max_loss=100,
        modes=(1, 3),
        measure=False,
    )
    engine = Engine(folder, "onnxruntime-int8")
    for mode in (1, 3):
        assert "onnxruntime-int8" in engine.manifest.mode(mode).accuracy
        assert engine(data[0].numpy(), mode).shape == (48, 5)


def test_too_much_loss_names_the_mode_after_trying_layers_in_float(small_conv, data, tmp_path):
    images, labels = data
    wrong = (labels + 1) % 5  # float32 is never right, so that no int8 can lose
    lines = []

    def evaluate_badly(engine, batches, active_streams):
        return 0.5 if engine.backend == "onnxruntime-int8" else 0.9

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mimonets.inference.exporter.accuracies", evaluate_badly)
        with pytest.raises(ValueError, match=r"costs 40.00 points of accuracy with 3 active, and "):
            export(
                small_conv,
                tmp_path / "out",
                int8=("onnxruntime",),
                calibration=[images],
                evaluation=[(images, wrong)],
                modes=(3,),
                measure=False,
                tell=lines.append,
            )
    assert list(tmp_path.iterdir()) == []
    tried = [line for line in lines if line.endswith("of the layers in float")]
    assert [line.split(", ")[2].partition("%")[0] for line in tried] == ["0", "12", "25", "50"]


def test_layers_that_hurt_stay_in_float_if_that_repairs_it(small_conv, data, tmp_path):
    answers = iter([0.9, 0.5, 0.9])  # float32, all in int8, an eighth in float

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mimonets.inference.exporter.accuracies", lambda *arguments: next(answers))
        folder = export(
            small_conv,
            tmp_path / "out",
            int8=("onnxruntime",),
            calibration=[(data[0], data[1])],
            evaluation=[data],
            modes=(3,),
            measure=False,
        )
    notes = json.loads((folder / "manifest.json").read_text())["formats"]["onnx-int8"]["notes"]
    assert len(notes["left_in_float"]["3"]) >= 1
    assert Engine(folder, "onnxruntime-int8")(data[0], 3).shape == (48, 5)


def test_layers_that_share_a_bias_get_one_each_under_names_that_are_free():
    helper = pytest.importorskip("onnx.helper")
    kernel = np.ones((2, 2, 1, 1), np.float32)
    constants = {"w": kernel, "val_2": np.float32([1, 2]), "one": np.float32([1])}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w", "val_2"], ["a"], name="first"),
            helper.make_node("Add", ["a", "one"], ["val_20"]),  # val_2 and a digit
            helper.make_node("Conv", ["val_20", "w", "val_2"], ["y"], name="second"),
        ],
        "shared",
        [helper.make_tensor_value_info("x", 1, [1, 2, 1, 1])],
        [helper.make_tensor_value_info("y", 1, [1, 2, 1, 1])],
        [helper.make_tensor(n, 1, v.shape, v.ravel().tolist()) for n, v in constants.items()],
    )
    give_each_layer_its_own_bias(graph)
    assert [node.input[2] for node in graph.node if node.op_type == "Conv"] == [
        "val_2",
        "second.own_bias",
    ]
    copy = {value.name: list(value.float_data) for value in graph.initializer}
    assert copy["second.own_bias"] == copy["val_2"] == [1.0, 2.0]
