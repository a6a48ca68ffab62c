"""int8: what it costs is measured, and refused if it is too much."""

import json

import numpy as np
import pytest
import torch

from mimonets import Engine, ExportOptions, WideResNet, WideResNetConfig, export
from mimonets.inference.manifest import read_manifest
from mimonets.inference.quantise import give_each_layer_its_own_bias, shorten_prelus
from mimonets.inference.trace import plain_products
from small_networks import ForeignCNN, randomise

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)


@pytest.fixture(scope="module")
def data(small_conv):
    """Inputs whose labels are the network's own answers: float32 is always right."""
    images = torch.randn(48, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return images, small_conv(images, active_streams=3).argmax(-1)


@pytest.fixture(scope="module")
def int8_folder(small_conv, data, made_once):
    """Two modes for every runtime there is, from calibration batches that can be read once."""
    return made_once(
        "int8",
        lambda folder: export(
            small_conv,
            folder,
            int8=(images for images in data[:1]),
            evaluation=[data],
            modes=(1, 3),
            measure=False,
            options=ExportOptions(max_loss=100),
        ),
    )


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_int8_answers_nearly_as_float32_and_says_what_it_costs(int8_folder, data, runtime):
    if runtime == "openvino":
        pytest.importorskip("nncf")
    manifest = read_manifest(int8_folder)
    accuracy = manifest.mode(3).accuracy
    assert accuracy["float32"] == 1.0
    assert 0.85 <= accuracy[f"{runtime}-int8"] <= 1.0
    notes = manifest.formats["onnx-int8" if runtime == "onnxruntime" else "openvino-int8"].notes
    assert notes["calibration_inputs"] == 48
    assert notes["reduced_range"] is not manifest.cpu["vnni"]
    engine = Engine(int8_folder, f"{runtime}-int8")
    assert engine.operating_points[1].accuracy == accuracy[f"{runtime}-int8"]
    assert manifest.operating_points[1].accuracy == 1.0
    found = engine(data[0].numpy(), 3)
    wanted = Engine(int8_folder, "torch")(data[0].numpy(), 3)
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert 1e-5 < error < 0.2  # rounded, and not far off
    for mode in (1, 3):
        assert f"{runtime}-int8" in engine.manifest.mode(mode).accuracy
        assert engine(data[0].numpy(), mode).shape == (48, 5)


@pytest.fixture(scope="module")
def tiny():
    """A network of few layers, and data for it: searching takes an export for every fraction."""
    return randomise(ForeignCNN()), (torch.randn(6, 2, 5, 5), torch.zeros(6, dtype=torch.long))


def test_too_much_loss_names_the_mode_after_trying_layers_in_float(tiny, tmp_path):
    model, data = tiny
    lines = []

    def evaluate_badly(engine, batches, active_streams):
        return 0.5 if engine.backend == "onnxruntime-int8" else 0.9

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mimonets.inference.export_folder.measure_accuracy", evaluate_badly)
        with pytest.raises(ValueError, match=r"40.00 points of accuracy with 2 active.* max_loss"):
            export(
                model,
                tmp_path / "out",
                int8=[data[0]],
                evaluation=[data],
                modes=(2,),
                measure=False,
                options=ExportOptions(int8_runtimes=("onnxruntime",), tell=lines.append),
            )
    assert list(tmp_path.iterdir()) == []
    tried = [line for line in lines if line.endswith("of the layers in float")]
    assert [line.split(", ")[2].partition("%")[0] for line in tried] == ["0", "12", "25", "50"]


def test_layers_that_hurt_stay_in_float_if_that_repairs_it(tiny, tmp_path):
    model, data = tiny
    answers = iter([0.9, 0.5, 0.9])  # float32, all in int8, an eighth in float

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "mimonets.inference.export_folder.measure_accuracy", lambda *arguments: next(answers)
        )
        with pytest.warns(DeprecationWarning, match="int8=batches"):  # as in 0.2.0
            folder = export(
                model,
                tmp_path / "out",
                int8=("onnxruntime",),
                calibration=[(data[0], data[1])],
                evaluation=[data],
                modes=(2,),
                measure=False,
            )
    notes = json.loads((folder / "manifest.json").read_text())["formats"]["onnx-int8"]["notes"]
    assert len(notes["left_in_float"]["2"]) >= 1
    assert len(Engine(folder, "onnxruntime-int8")(data[0], 2)) == 6


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


@pytest.mark.parametrize(("highest", "kind"), [(1.0, "Max"), (1.5, "Sub")])
def test_prelus_become_one_maximum_where_no_slope_is_above_one(highest, kind, tmp_path):
    small = {"depth": 10, "width": 1, "num_classes": 3, "in_channels": 1, "image_size": 8}
    model = WideResNet(WideResNetConfig(**small, activation="prelu")).eval()
    for name, weight in model.named_parameters():
        if name.endswith("activation.weight"):
            torch.nn.init.uniform_(weight, -0.5, highest)
            weight.data[0] = highest
    images = torch.randn(2, 1, 8, 8)
    path = export(model, tmp_path / "export", measure=False) / "mode-1.onnx"
    graph = plain_products(path)
    shorten_prelus(graph.graph)
    kinds = [node.op_type for node in graph.graph.node if node.name.endswith(".prelu")]
    assert set(kinds) == {kind}
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    (found,) = session.run(None, {"inputs": images.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(found), model(images), rtol=1e-4, atol=1e-4)
