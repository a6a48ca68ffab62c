"""``mimonets serve`` as a process: it starts, reloads, drains and dies as an operator expects."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from argparse import Namespace
from contextlib import suppress

import httpx
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from torch import nn

import mimonets as mn
from mimonets._inputs import InputSpec
from mimonets.cli import serve
from mimonets.cli.main import main
from mimonets.cli.open_models import name_and_folders, open_network, weights_in
from mimonets.cli.serve import write_samples
from mimonets.models import SlimmableWideResNet, SlimmableWideResNetConfig
from mimonets.recipes import load_recipe
from mimonets.serving.networks import superposed
from serving.fakes import TINY, client_of, make_server, tensor

RESULT = {"final": {}, "steps": 1, "skipped": 0, "not_finite": 0}  # of a run


def small_model(folder, streams=2):
    torch.manual_seed(0)
    model = mn.MIMOConv(mn.MIMOConvConfig(num_streams=streams, **TINY))
    model.input_spec = InputSpec(kind="image", shape=(1, 8, 8))
    return mn.save(model, folder)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def request(count=1):
    data = np.zeros((count, 1, 8, 8)).ravel().tolist()
    shape = [count, 1, 8, 8]
    given = {"name": "input", "datatype": "FP32", "shape": shape, "data": data}
    return {"inputs": [given], "parameters": {"timeout": 20_000_000}}


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    folder = small_model(tmp_path_factory.mktemp("served") / "small")
    (folder.parent / "tmp").mkdir()
    port, grpc_port = free_port(), free_port()
    command = [sys.executable, "-m", "mimonets.cli.main", "serve", str(folder), "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--slo-ms", "20000", "--grpc-port", str(grpc_port)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder.parent / "tmp")},
    )
    url = f"http://127.0.0.1:{port}"
    until = time.monotonic() + 60
    try:
        while time.monotonic() < until:
            with suppress(httpx.TransportError):  # not yet, or on a busy machine not at once
                if httpx.get(f"{url}/v2/health/ready").status_code == 200:
                    break
            time.sleep(0.1)
        yield process, url, f"127.0.0.1:{grpc_port}", folder.parent / "tmp"
    finally:
        process.kill()
        process.communicate()


def test_it_serves_reloads_and_drains(process):
    running, url, grpc_address, temporary = process
    infer = f"{url}/v2/models/small/infer"
    first = httpx.post(infer, json=request(3))
    assert first.status_code == 200, first.text
    assert first.json()["outputs"][0]["shape"] == [3, 10]
    assert httpx.get(url).status_code == 200
    assert "default-src 'none'" in httpx.get(url).headers["content-security-policy"]
    assert httpx.get(f"{url}/v1/demo").status_code == 404, "no demo was asked for"
    assert httpx.get(url, headers={"host": "evil.example"}).status_code == 421

    given = triton.InferInput("input", [3, 1, 8, 8], "FP32")
    given.set_data_from_numpy(np.zeros((3, 1, 8, 8), np.float32))
    with triton.InferenceServerClient(grpc_address) as client:
        assert client.infer("small", [given]).as_numpy("logits").shape == (3, 10)

    running.send_signal(signal.SIGHUP)
    until = time.monotonic() + 30
    while time.monotonic() < until:
        version = httpx.post(infer, json=request()).json()["model_version"]
        if version == "2":
            break
        time.sleep(0.05)
    assert version == "2"

    async def stop_while_asking():
        async with httpx.AsyncClient(timeout=30) as client:
            tasks = [asyncio.create_task(client.post(infer, json=request(8))) for _ in range(10)]
            await asyncio.sleep(0.05)
            running.send_signal(signal.SIGTERM)
            return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(stop_while_asking())
    codes = [answer.status_code for answer in answers if isinstance(answer, httpx.Response)]
    assert set(codes) <= {200, 503}
    assert running.wait(20) == 0
    assert not list(temporary.glob("tmp*")), "nothing stays behind"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/v2/health/live")


def test_mistakes_are_named_in_one_line(tmp_path, capsys):
    folder = str(small_model(tmp_path / "m"))
    for arguments, message in (
        (["serve", str(tmp_path / "nothing")], "is no folder"),
        (["serve", folder, "--host", "0.0.0.0"], "reachable from elsewhere: give --keys"),
        (["serve", folder, "--theta", "3"], "theta=3.0 must be"),
        (["serve", folder, "--ray", "2", "--grpc-port", "8001"], "leave out --ray"),
        (["serve", f"a={folder}", f"a={folder}"], "same name"),
        (["serve", folder, "--demo"], "does not say which recipe and data"),
        (["serve", folder, "--demo", "--keys", "keys.json"], "leave out --keys or --demo"),
        (["serve", folder, "--engine", "opnvino", "--port", str(free_port())], "did you mean"),
    ):
        assert main(arguments) == 2, arguments
        assert message in capsys.readouterr().err, arguments


@pytest.mark.parametrize("text", ["99999", "0", "-5", "eighty"])
def test_a_port_that_is_none_is_named(text, capsys):
    with pytest.raises(SystemExit):
        main(["serve", f"--port={text}"])
    assert f"{text!r} is no port: choose an integer from 1 to 65535" in capsys.readouterr().err


def test_names_come_from_folders():
    assert name_and_folders("runs/digits")[0] == "digits"
    assert name_and_folders("runs/digits/model")[0] == "digits"
    assert name_and_folders("a=runs/x,runs/y")[0] == "a"


def test_a_folder_may_have_an_equals_sign_in_its_name(tmp_path):
    folder = tmp_path / "lr=0.1"
    folder.mkdir()
    assert name_and_folders(str(folder)) == ("lr=0.1", [folder])


def test_a_shipped_network_is_served_by_its_name(tmp_path):
    name, folders = name_and_folders("digits")
    assert name == "digits"
    assert len(open_network(name, folders, "torch", 1).points) == 4
    assert write_samples(folders[0], tmp_path / "samples.npz").exists()


def test_a_run_is_served_with_its_accuracies(tmp_path):
    run_folder = tmp_path / "run"
    small_model(run_folder / "model")
    recipe = load_recipe("digits-mimoconv-dynamic")
    (run_folder / "recipe.yaml").write_text(recipe.as_yaml())
    final = {"1": {"accuracy": 0.9}, "2": {"accuracy": 0.8}}
    (run_folder / "result.json").write_text(json.dumps({**RESULT, "final": final}))
    network = open_network("run", [run_folder], "torch", 1)
    assert {point.inputs_per_pass: point.accuracy for point in network.points} == {1: 0.9, 2: 0.8}
    assert network.input_spec.shape == (1, 8, 8)
    with np.load(write_samples(run_folder, tmp_path / "samples.npz")) as samples:
        assert samples["inputs"].shape == (297, 1, 8, 8)
        assert samples["inputs"].dtype == np.uint8
    pair = open_network("pair", [run_folder, run_folder / "model"], "torch", 1)
    assert [point.inputs_per_pass for point in pair.points] == [1, 1]


def test_a_network_with_gears_is_served_in_all_of_them(tmp_path):
    sizes = {"depth": 10, "width": 1, "image_size": 8, "in_channels": 1, "num_classes": 5}
    config = SlimmableWideResNetConfig(**sizes, widths=(1.0, 0.5), shrinks=(1, 1))
    model = SlimmableWideResNet(config).eval()
    network = open_network("geared", [mn.save(model, tmp_path / "m")], "auto", 1)
    assert [point.name for point in network.points] == ["gear 1", "gear 2"]
    images = torch.randn(3, 1, 8, 8)
    for gear, point in enumerate(network.points, start=1):
        with torch.no_grad():
            wanted = model(images, point=gear).numpy()
        np.testing.assert_allclose(point.run(images.numpy()), wanted, rtol=1e-5, atol=1e-6)


def test_a_run_is_served_with_the_model_that_it_kept(tmp_path):
    small_model(tmp_path / "model")
    assert weights_in(tmp_path) == tmp_path / "model", "of an export"
    (tmp_path / "recipe.yaml").write_text("{model: {}, train: {}}")
    assert weights_in(tmp_path) == tmp_path / "model"
    small_model(tmp_path / "best")
    (tmp_path / "result.json").write_text(json.dumps({**RESULT, "keep": "best"}))
    assert weights_in(tmp_path) == tmp_path / "best"
    (tmp_path / "result.json").write_text(json.dumps({**RESULT, "keep": "last"}))
    assert weights_in(tmp_path) == tmp_path / "model"
    assert weights_in(tmp_path / "model") == tmp_path / "model"


def test_shipped_models_are_served_with_the_accuracy_of_their_card():
    (_, folders) = name_and_folders("digits")
    network = open_network("digits", folders, "torch", 1)
    assert {point.inputs_per_pass: point.accuracy for point in network.points} == {
        1: 0.983,
        2: 0.973,
        3: 0.97,
        4: 0.963,
    }


def test_what_is_loaded_is_no_work_for_the_garbage_collector():
    """Going through all objects of PyTorch stops every thread for a tenth of a second and more."""
    code = (
        "import gc, mimonets.serving.run as run; run.freeze_loaded_objects(); "
        "print(gc.get_freeze_count(), len(gc.get_objects()))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    frozen, left = map(int, found.stdout.split())
    assert frozen > 20_000
    assert left < frozen / 100


def ask_one_model(network, request):
    async def main():
        async with client_of(make_server(models={"model": lambda: network})) as client:
            return (await client.post("/v2/models/model/infer", json=request)).json()

    return asyncio.run(main())


def test_a_mimoformer_is_served_with_short_and_long_sequences(tmp_path):
    torch.manual_seed(0)
    config = mn.MIMOFormerConfig(
        vocab_size=20,
        max_length=12,
        num_classes=3,
        depth=1,
        heads=2,
        head_dim=8,
        dim=16,
        hidden_dim=16,
        grid=(2, 2),
        superpose="attention",
    )
    model = mn.MIMOFormer(config).eval()
    mn.save(model, tmp_path / "former")
    network = open_network("model", [tmp_path / "former"], "torch", 1)
    tokens = torch.randint(20, (3, 7))
    with torch.no_grad():
        mask = torch.ones(3, 7, dtype=torch.bool)
        wanted = model(tokens, mask=mask, active_streams=1)
    given = {"name": "input", "datatype": "INT64", "shape": [3, 7], "data": tokens.ravel().tolist()}
    answer = ask_one_model(network, {"inputs": [given], "parameters": {"mode": "slow"}})
    found = np.array(answer["outputs"][0]["data"]).reshape(3, 3)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-3, atol=1e-4)
    fast = ask_one_model(network, {"inputs": [given], "parameters": {"superpose": True}})
    assert fast["parameters"]["active_streams"] == 3


def test_a_network_of_the_users_is_served_in_superposition(tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 3)
    )
    example = torch.randn(4, 1, 8, 8)
    mine = mn.superpose(network, num_streams=2, bind_after="1", unbind_before="4", example=example)
    engine = mn.Engine(mine.eval(), "torch", 1)
    served = superposed("model", engine)
    given = tensor(example.numpy(), superpose=True)
    answer = ask_one_model(served, given)
    assert answer["parameters"]["active_streams"] == 2
    with torch.no_grad():
        wanted = mine(example, active_streams=2).numpy()
    found = np.array(answer["outputs"][0]["data"]).reshape(4, 3)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("asked", [True, False])
def test_freed_memory_is_kept_if_asked_for(asked, monkeypatch):
    calls = []
    monkeypatch.setattr(serve, "keep_freed_memory", lambda: calls.append(1))
    options = {"models": ["a=runs/x", "a=runs/y"], "keep_memory": asked}
    with pytest.raises(ValueError, match="same name"):
        serve.make_server(Namespace(**options))
    assert len(calls) == asked
