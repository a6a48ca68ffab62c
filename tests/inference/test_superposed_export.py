"""A superposed network exports like our own: all modes, and the same answers."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import mimonets as mn
from mimonets.evaluation import BenchSettings, bench
from mimonets.models import builders

pytest.importorskip("onnxruntime")


def make_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 5),
    )


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(builders, "BUILDERS", {"cnn": make_cnn})
    settings = {"num_streams": 3, "bind_after": "1", "unbind_before": "7", "builder": "cnn"}
    return mn.superpose(example=torch.randn(1, 1, 9, 9), **settings).eval()


def test_every_mode_runs_in_onnx_runtime_and_in_pytorch(model, tmp_path):
    folder = mn.export(model, tmp_path / "out", measure=False)
    images = torch.randn(7, 1, 9, 9)
    for backend in ("onnxruntime", "torch"):
        engine = mn.Engine(folder, backend=backend)
        for active in (1, 2, 3):
            found = torch.as_tensor(engine(images.numpy(), active_streams=active))
            wanted = model(images, active_streams=active).detach()
            assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_without_a_builder_pytorch_needs_the_network_and_onnx_runtime_does_not(tmp_path):
    settings = {"num_streams": 2, "bind_after": "1", "unbind_before": "7"}
    model = mn.superpose(make_cnn(), example=torch.randn(1, 1, 9, 9), **settings).eval()
    folder = mn.export(model, tmp_path / "out", measure=False)
    assert len(mn.Engine(folder, backend="onnxruntime")(torch.randn(3, 1, 9, 9).numpy())) == 3
    with pytest.raises(ValueError, match="pass the network to Engine instead"):
        mn.Engine(folder, backend="torch")


def test_it_is_timed_in_every_mode(model):
    result = bench(model, settings=BenchSettings(batch_sizes=(6,), rounds=2, warmup=0))
    assert sorted(result.modes.values()) == [1, 2, 3]
