"""``mimonets serve`` as a process: it starts, reloads, drains and dies as an operator expects."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import numpy as np
import pytest
import torch

import mimonets as mn
from mimonets._inputs import InputSpec
from mimonets.cli._opening import name_and_folders, open_network
from mimonets.cli.main import main
from mimonets.cli.serve import write_samples
from mimonets.recipes import load_recipe
from serving.test_clients import TINY


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
    port = free_port()
    command = [sys.executable, "-m", "mimonets.cli.main", "serve", str(folder), "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--slo-ms", "20000"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    url = f"http://127.0.0.1:{port}"
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if httpx.get(f"{url}/v2/health/ready").status_code == 200:
                break
        except httpx.ConnectError:
            pass
        time.sleep(0.1)
    yield process, url
    process.kill()
    process.communicate()


def test_it_serves_reloads_and_drains(process):
    running, url = process
    infer = f"{url}/v2/models/small/infer"
    first = httpx.post(infer, json=request(3))
    assert first.json()["outputs"][0]["shape"] == [3, 10]
    assert httpx.get(url).status_code == 200
    assert "default-src 'none'" in httpx.get(url).headers["content-security-policy"]
    assert httpx.get(f"{url}/v1/demo").status_code == 404, "no demo was asked for"
    assert httpx.get(url, headers={"host": "evil.example"}).status_code == 421

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
    assert running.wait(20) in (0, -signal.SIGTERM)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/v2/health/live")


def test_mistakes_are_named_in_one_line(tmp_path, capsys):
    folder = str(small_model(tmp_path / "m"))
    for arguments, message in (
        (["serve", str(tmp_path / "nothing")], "is no folder"),
        (["serve", folder, "--host", "0.0.0.0"], "reachable from elsewhere: give --keys"),
        (["serve", folder, "--theta", "3"], "theta=3.0 must be"),
        (["serve", f"a={folder}", f"a={folder}"], "same name"),
        (["serve", folder, "--demo"], "needs the run"),
        (["serve", folder, "--engine", "opnvino", "--port", str(free_port())], "did you mean"),
    ):
        assert main(arguments) == 2, arguments
        assert message in capsys.readouterr().err, arguments


def test_names_come_from_folders():
    assert name_and_folders("runs/digits")[0] == "digits"
    assert name_and_folders("runs/digits/model")[0] == "digits"
    assert name_and_folders("a=x,y")[0] == "a"


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
    (run_folder / "result.json").write_text(json.dumps({"final": final}))
    network = open_network("run", [run_folder], "torch", 1)
    assert {point.group: point.accuracy for point in network.points} == {1: 0.9, 2: 0.8}
    assert network.input_spec.shape == (1, 8, 8)
    samples = np.load(write_samples(run_folder, tmp_path / "samples.npz"))
    assert samples["inputs"].shape == (297, 1, 8, 8)
    assert samples["inputs"].dtype == np.uint8
    pair = open_network("pair", [run_folder, run_folder / "model"], "torch", 1)
    assert [point.group for point in pair.points] == [1, 1]


def test_shipped_models_are_served_with_the_accuracy_of_their_card():
    (_, folders) = name_and_folders("digits")
    network = open_network("digits", folders, "torch", 1)
    assert {point.group: point.accuracy for point in network.points} == {
        1: 0.983,
        2: 0.973,
        3: 0.97,
        4: 0.963,
    }
