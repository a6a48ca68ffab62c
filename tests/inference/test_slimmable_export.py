"""A slimmable network is exported with its operating points, and every engine runs them."""

from importlib.util import find_spec

import pytest
import torch

from mimonets import Engine, export
from mimonets.inference.torch_runtime import describe
from mimonets.models.baselines.slimmable import SlimmableWideResNet, SlimmableWideResNetConfig
from small_networks import randomise

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = SlimmableWideResNetConfig(
        **{"depth": 10, "width": 1, "in_channels": 1, "image_size": 16, "num_classes": 5},
        **{"widths": (1.0, 0.5, 0.5), "shrinks": (1, 1, 2), "pool": 2},
    )
    return randomise(SlimmableWideResNet(config))


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    formats = ("onnx", "pt2", *(("openvino",) if find_spec("openvino") else ()))
    return export(
        model, tmp_path_factory.mktemp("slimmable") / "out", formats=formats, modes=[1, 3]
    )


def test_every_operating_point_is_a_mode_to_export(model):
    assert [mode.active_streams for mode in describe(model).modes] == [1, 2, 3]


def test_every_engine_runs_what_was_written(model, folder):
    images = model.example_inputs(5)
    with torch.no_grad():
        wanted = {point: model(images, point=point) for point in (1, 3)}
        assert not torch.allclose(wanted[1], wanted[3])
    others = ("openvino",) if find_spec("openvino") else ()
    for backend in ("torch", "onnxruntime", "pt2", *others):
        engine = Engine(folder, backend)
        points = [(p.number, p.inputs_per_pass) for p in engine.operating_points]
        assert points == [(1, 1), (3, 1)]
        for point, answers in wanted.items():
            torch.testing.assert_close(engine(images, point), answers, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(engine(images), wanted[1], rtol=1e-4, atol=1e-5)
    macs = [record.macs_per_input for record in engine.manifest.modes]
    assert macs[0] > 4 * macs[1]


def test_a_point_that_was_not_exported_is_refused(model, folder):
    with pytest.raises(ValueError, match=r"active_streams=2.*choose from 1, 3"):
        Engine(folder, "onnxruntime")(model.example_inputs(2), 2)
