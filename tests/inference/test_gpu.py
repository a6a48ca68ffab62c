"""Inference on a GPU, as far as it shows without one: what is chosen, where tensors go."""

import json
import re
import tomllib

import numpy as np
import onnxruntime
import pytest
import torch

import mimonets as mn
from fake_gpu import fake_gpu, move_to_fake_gpu
from mimonets.inference import Engine, engine, onnx_runtime
from mimonets.inference.torch_runtime import OneMode, TorchBackend
from mimonets.serving.ray import on_ray
from results_files import ROOT

CUDA = "CUDAExecutionProvider"


@pytest.fixture
def cuda_provider(monkeypatch):
    """An ONNX Runtime that says it has CUDA, and notes what its sessions are asked for."""
    asked = []
    real = onnxruntime.InferenceSession

    class Session:
        def __init__(self, path, options, providers, disabled_optimizers):
            asked.append(providers)
            self.session = real(path, options, providers=["CPUExecutionProvider"])
            self.run = self.session.run

        def get_providers(self):
            return [CUDA] if Session.works else ["CPUExecutionProvider"]

    Session.works = True
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: [CUDA, "CPUExecutionProvider"]
    )
    monkeypatch.setattr(engine, "has_gpu", lambda: True)
    return Session, asked


def test_onnx_runtime_gets_the_device_that_was_asked_for(exported, small_conv, cuda_provider):
    _, asked = cuda_provider
    found = Engine(exported, "onnxruntime", device="cuda:1")
    assert (found.device, "device='cuda:1'" in repr(found)) == ("cuda:1", True)
    images = small_conv.example_inputs(3).numpy()
    assert np.allclose(found(images), Engine(small_conv, "torch")(images), atol=1e-4)
    assert asked == [[(CUDA, {"device_id": 1}), "CPUExecutionProvider"]]


def test_auto_races_the_gpu_against_the_cpu_where_it_is(exported, cuda_provider):
    _, asked = cuda_provider
    found = Engine(exported)
    assert "onnxruntime on cuda" in found.choice
    assert [(CUDA, {"device_id": 0}), "CPUExecutionProvider"] in asked
    assert Engine(exported, "onnxruntime").device == "cuda", "by name too"
    assert Engine(exported, device="cpu").device == "cpu"


def test_without_a_gpu_auto_takes_the_cpu(exported, monkeypatch):
    monkeypatch.setattr(engine, "has_gpu", lambda: False)
    assert Engine(exported).device == "cpu"


def test_a_session_that_falls_back_to_the_cpu_is_refused(exported, cuda_provider):
    session, _ = cuda_provider
    session.works = False
    found = Engine(exported, "onnxruntime", device="cuda")
    with pytest.raises(ValueError, match="would run on the CPU: check that CUDA and cuDNN fit"):
        found.warm_up(2)


@pytest.mark.parametrize(
    ("backend", "device", "message"),
    [
        ("onnxruntime", "cuda", "needs ONNX Runtime with CUDA.*pip install onnxruntime-gpu"),
        ("openvino", "cuda", "runs on a CPU only: choose torch, compiled or onnxruntime"),
        ("torch", "cuda", "no device 'cuda' that PyTorch"),
        ("auto", "gpu", "device='gpu' is not known: choose auto, cpu, cuda or cuda:1"),
        ("auto", "cuda", "no device 'cuda' that PyTorch"),
    ],
)
def test_what_cannot_run_there_says_what_can(exported, backend, device, message, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(ValueError, match=message):
        Engine(exported, backend, device=device)
    assert onnx_runtime.CUDA not in onnxruntime.get_available_providers()


def test_pytorch_answers_on_the_gpu_that_its_network_is_on(small_conv):
    manifest = Engine(small_conv, "torch").manifest
    with fake_gpu():
        there = move_to_fake_gpu(mn.MIMOConv(small_conv.config).eval())
        backend = TorchBackend("torch", there, None, manifest)
        assert backend.device.type == "cuda"
        (answers,) = backend.answer(
            OneMode(there, manifest.options(2)), [torch.empty(4, 1, 8, 8, device="cpu")]
        )
        assert (answers.device.type, answers.shape) == ("cuda", (4, small_conv.config.num_classes))


def test_a_replica_asks_ray_for_its_share_of_a_gpu():
    pytest.importorskip("ray.serve", reason="needs ray[serve]: pip install 'mimonets[ray]'")
    for gpus in (0.0, 0.5):
        application = on_ray(lambda: None, replicas=1, gpus=gpus)
        options = application._bound_deployment.ray_actor_options
        assert options.get("num_gpus", 0.0) == gpus


@pytest.mark.parametrize(
    ("words", "gpus"),
    [([], 0.0), (["--device", "cuda"], 1.0), (["--device", "cuda", "--gpus", "0.25"], 0.25)],
)
def test_the_command_line_says_how_much_of_a_gpu_a_replica_takes(words, gpus):
    from mimonets.cli import serve
    from mimonets.cli._options import Parser

    parser = Parser()
    serve.add_options(parser)
    assert serve.gpus_of(parser.parse_args(["digits", *words])) == gpus


def test_the_container_with_cuda_serves_on_it_and_has_one_onnx_runtime():
    from mimonets.cli import serve
    from mimonets.cli._options import Parser

    lines = (ROOT / "deploy" / "Containerfile.gpu").read_text().splitlines()
    found = dict(line.split(maxsplit=1) for line in lines if line and line[0] not in "# ")
    assert json.loads(found["ENTRYPOINT"]) == ["mimonets", "serve"]
    parser = Parser()
    serve.add_options(parser)
    args = parser.parse_args(json.loads(found["CMD"]))
    assert (args.device, args.port) == ("cuda", int(found["EXPOSE"]))
    assert args.keys, "it would refuse to start without keys"
    install, gpu = found["RUN"].rsplit(maxsplit=1)
    assert gpu == "onnxruntime-gpu"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.search(r"\[(.*)\]", install)[1].split(",")
    wanted = [*project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    assert any(line.startswith("torch>") for line in wanted)
    assert not any(line.startswith("onnxruntime") for line in wanted), "both are one module"
