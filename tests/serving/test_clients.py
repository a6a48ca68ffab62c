"""Clients that others wrote work unchanged, on a real port, in front of a real network."""

import time

import numpy as np
import pytest
import torch

import mimonets as mn
from mimonets._inputs import InputSpec
from mimonets.serving.networks import superposed, switched
from serving.fakes import SPEC, TINY, FakeEngine, listening, make_server

triton = pytest.importorskip("tritonclient.http", reason="pip install 'tritonclient[http]'")


class Eager:
    """A network in PyTorch as an engine."""

    def __init__(self, model):
        self.model = model.eval()
        self.num_streams = model.num_streams
        self.operating_points = model.operating_points
        self.input_spec = InputSpec(kind="image", shape=(1, 8, 8))

    def __call__(self, inputs, active_streams=None):
        with torch.inference_mode():
            images = torch.from_numpy(np.array(inputs))
            if self.num_streams == 1:
                return self.model(images).numpy()
            return self.model(images, active_streams=active_streams).numpy()


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    config = mn.MIMOConvConfig(num_streams=4, **TINY)
    return Eager(mn.MIMOConv(config))


@pytest.fixture(scope="module")
def address(network):
    plain = Eager(mn.WideResNet(mn.WideResNetConfig(**TINY)))
    models = {
        "digits": lambda: superposed("digits", network, {1: 0.99, 2: 0.97, 4: 0.93}),
        "pair": lambda: switched(
            "pair", {"big": network, "small": plain}, {"big": 0.99, "small": 0.9}
        ),
    }
    with listening(make_server(models=models, slo=5.0)) as address:
        yield address


@pytest.fixture
def client(address):
    client = triton.InferenceServerClient(address)
    yield client
    client.close()


def tensors(images, *, binary):
    given = triton.InferInput("input", list(images.shape), "FP32")
    given.set_data_from_numpy(images, binary_data=binary)
    return [given]


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_tritonclient_gets_the_networks_own_answers(client, network, binary_in, binary_out):
    images = np.random.default_rng(0).standard_normal((3, 1, 8, 8), dtype=np.float32)
    found = client.infer(
        "digits",
        tensors(images, binary=binary_in),
        outputs=[
            triton.InferRequestedOutput("logits", binary_data=binary_out),
            triton.InferRequestedOutput("label", binary_data=binary_out),
        ],
        request_id="seven",
        timeout=4_000_000,
        priority=1,
        parameters={"mode": "slow"},
    )
    wanted = network(images, active_streams=1)
    np.testing.assert_allclose(found.as_numpy("logits"), wanted, rtol=1e-4, atol=1e-5)
    assert found.as_numpy("label").tolist() == wanted.argmax(axis=1).tolist()
    assert found.get_response()["id"] == "seven"


def test_tritonclient_without_outputs_and_with_classification(client, network):
    images = np.random.default_rng(1).standard_normal((2, 1, 8, 8), dtype=np.float32)
    plain = client.infer("digits", tensors(images, binary=True))
    assert plain.as_numpy("logits").shape == (2, 10)
    top = client.infer(
        "digits",
        tensors(images, binary=True),
        outputs=[triton.InferRequestedOutput("logits", class_count=2)],
        parameters={"mode": "slow"},
    ).as_numpy("logits")
    assert top.shape == (2, 2)
    best = network(images, active_streams=1).argmax(axis=1)
    assert [int(row[0].decode().split(":")[1]) for row in top] == best.tolist()


def test_tritonclient_asks_about_server_and_model(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert not client.is_model_ready("nothing")
    assert client.get_server_metadata()["name"] == "mimonets"
    assert client.get_model_metadata("digits")["inputs"][0]["shape"] == [-1, 1, 8, 8]
    names = {entry["name"] for entry in client.get_model_repository_index()}
    assert names == {"digits", "pair"}


def test_tritonclient_sees_errors(client):
    wrong = np.zeros((1, 1, 9, 9), dtype=np.float32)
    with pytest.raises(triton.InferenceServerException, match=r"must be \(inputs, 1, 8, 8\)"):
        client.infer("digits", tensors(wrong, binary=True))


def test_a_big_and_a_small_network_are_one_model(client):
    images = np.zeros((1, 1, 8, 8), dtype=np.float32)
    modes = client.get_model_metadata("pair")["parameters"]["modes"]
    assert modes[0]["name"] == "big"
    found = client.infer("pair", tensors(images, binary=True), parameters={"min_accuracy": 0.95})
    assert found.get_response()["parameters"]["expected_accuracy"] == 0.99


def test_curl_as_in_the_docs_works(address, tmp_path):
    import json
    import shutil
    import subprocess

    if shutil.which("curl") is None:
        pytest.skip("curl is not here")
    request = {
        "inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.0] * 64}]
    }
    done = subprocess.run(
        ["curl", "-s", f"http://{address}/v2/models/digits/infer", "-d", json.dumps(request)],
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout)["outputs"][0]["shape"] == [1, 10]


def test_the_server_adds_little_time_when_idle():
    """Everything but the network: under 3 ms at the median, on an idle machine."""
    engine = FakeEngine(spec=SPEC)
    with listening(make_server(engine)) as address:
        client = triton.InferenceServerClient(address)
        images = np.zeros((1, 1, 2, 2), dtype=np.float32)
        seconds = []
        for _ in range(50):
            started = time.perf_counter()
            client.infer("digits", tensors(images, binary=True))
            seconds.append(time.perf_counter() - started)
        client.close()
    assert np.median(seconds) < 0.03  # ten times that: the machine may be busy
