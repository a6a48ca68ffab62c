"""Scale-out on Ray Serve: two replicas on one machine, one of them killed under load."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest
from prometheus_client import generate_latest

from mimonets.cli.main import main
from mimonets.loadtest.load import Samples, send
from mimonets.serving.metrics import Metrics
from mimonets.serving.ray import HEALTH_PERIOD, Board, merge
from serving.test_serve_command import free_port, small_model

SLO = 10.0


def test_without_ray_the_line_that_installs_it_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.serve", None)
    assert main(["serve", "digits", "--ray", "2"]) == 2
    assert "mimonets[ray]" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "message"), [("0", "write 2, or 1-4"), ("4-1", "fewest come")])
def test_a_wrong_number_of_replicas_is_named(text, message, capsys):
    with pytest.raises(SystemExit):
        main(["serve", "digits", "--ray", text])
    assert message in capsys.readouterr().err


def replicas_of(driver):
    """Find the processes of replicas among the descendants' names."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True)
    return [
        int(line.split()[0])
        for line in listed.stdout.splitlines()
        if "ServeReplica:default:mimonets" in line
    ]


def answered_by_replica(url):
    """Read at any replica how many requests each of them answered."""
    with urllib.request.urlopen(f"{url.partition('/v2/')[0]}/metrics") as response:
        text = response.read().decode()
    found = re.findall(r'mimonets_requests_total{.*replica="(\w+)".*status="200"} (\S+)', text)
    return {name: float(count) for name, count in found}


@pytest.fixture
def cluster(tmp_path):
    pytest.importorskip("ray.serve", reason="needs ray[serve]: pip install 'mimonets[ray]'")
    folder, port = small_model(tmp_path / "small"), free_port()
    command = [sys.executable, "-m", "mimonets.cli.main", "serve", str(folder), "--ray", "2"]
    known = set(replicas_of(None))
    driver = subprocess.Popen(
        [*command, "--port", str(port), "--slo-ms", str(1000 * SLO)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        line = driver.stdout.readline()
        while line and "Serving 2 replicas" not in line:
            line = driver.stdout.readline()
        assert line, "the driver ended"
        yield f"http://127.0.0.1:{port}/v2/models/small", set(replicas_of(driver)) - known
    finally:
        driver.send_signal(signal.SIGINT)
        try:
            driver.communicate(timeout=60)
        finally:
            driver.kill()
            driver.communicate()


def test_the_numbers_of_replicas_are_told_apart_and_a_silent_one_is_forgotten(monkeypatch):
    board = Board()
    for name, count in (("a", 1), ("b", 2)):
        metrics = Metrics(lambda: 0, time.monotonic)
        for _ in range(count):
            metrics.ended("digits", 200)
        found = board.exchange(name, list(metrics.registry.collect()))
    text = generate_latest(SimpleNamespace(collect=lambda: merge(found))).decode()
    assert text.count("# TYPE mimonets_requests_total counter") == 1
    for name, count in (("a", 1), ("b", 2)):
        labels = f'{{model="digits",replica="{name}",status="200"}}'
        assert f"mimonets_requests_total{labels} {count}.0" in text
    monkeypatch.setattr("mimonets.serving.ray.FORGOTTEN", 0)
    assert set(board.exchange("b", [])) <= {"b"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_any_replica_tells_the_numbers_of_all(cluster):
    url, replicas = cluster
    samples, asked, found = Samples(np.zeros((1, 1, 8, 8), np.float32)), 0, {}
    until = time.monotonic() + 60
    while asked < 40 or len(found) < len(replicas) or sum(found.values()) < asked:
        result = asyncio.run(send(url, np.arange(20) / 20, samples, slo=SLO))
        asked += int((result.status == 200).sum())
        time.sleep(2 * HEALTH_PERIOD)
        found = answered_by_replica(url)
        assert time.monotonic() < until, found
    assert sum(found.values()) == asked


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_replica_loses_what_it_held_and_nothing_else(cluster):
    url, replicas = cluster
    assert len(replicas) == 2
    rng = np.random.default_rng(0)
    samples = Samples(rng.standard_normal((8, 1, 8, 8), dtype=np.float32))
    rate, seconds, killed_at = 20.0, 20.0, 8.0

    async def load():
        schedule = np.arange(int(rate * seconds)) / rate
        sending = asyncio.create_task(send(url, schedule, samples, slo=SLO))
        await asyncio.sleep(killed_at)
        os.kill(next(iter(replicas)), signal.SIGKILL)
        return await sending

    result = asyncio.run(load())
    lost = result.status != 200
    print(json.dumps(result.summary()))
    # Sent before Ray notices: what was under way there, and at most a second's arrivals.
    assert not lost[result.intended < killed_at - SLO].any()
    assert not lost[result.intended > killed_at + 2].any(), "the other one answers"
    assert lost.sum() <= 1.5 * rate
    time.sleep(1)
