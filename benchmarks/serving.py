"""Measure real servers with a real network under load: ours, LitServe and Ray Serve.

In pieces, one contender and one workload each, that are kept in a folder; call it until all are
there, then draw:

python benchmarks/serving_networks.py NETWORKS
python benchmarks/serving.py measure NETWORKS PIECES [SECONDS] [WORKLOAD,...] [CONTENDER;...]
python benchmarks/serving.py report PIECES results

Traces are read from the folder MIMONETS_ARRIVALS. The load comes from this process, on the same
cores as the server: its share of the processor is in every row, and so is that of others.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import numpy as np
from serving_contenders import ENGINE, OTHERS, OURS, PATH

from mimonets._files import write_text
from mimonets.evaluation.provenance import environment
from mimonets.serving.load import LoadResult, Samples, send
from mimonets.serving.simulator import Outcome
from mimonets.serving.workloads import poisson, read_trace, step

SLO = 0.25  # seconds
LOADS = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0)  # offered / slow capacity
TRACES = {"azure-llm-2023-code": (0.3, 1.0), "azure-llm-2023-conv": (1.0, 3.0)}
SECONDS = 10.0  # of one load
SPIKE = (0.5, 3.2)  # loads before and in it
SPIKE_SECONDS = 24.0
START = 60.0  # seconds that a server may take to start


def measure(
    networks: str, pieces: str, seconds: str = "150", workloads: str = "", contenders: str = ""
) -> None:
    """Measure what is not there yet, for so many seconds."""
    place, until = Path(pieces), time.monotonic() + float(seconds)
    place.mkdir(parents=True, exist_ok=True)
    capacity = calibrate(Path(networks), place / "capacity.json")
    for workload in workloads.split(",") if workloads else ("poisson", "spike", *TRACES):
        for contender in contenders.split(";") if contenders else (*OURS, *OTHERS):
            path = place / f"{workload}-{contender.replace('/', '-').replace(', ', '-')}.json"
            if path.exists():
                continue
            if time.monotonic() > until:
                print("more is left: call again")
                return
            piece = run_piece(Path(networks), contender, workload, capacity)
            write_text(path, json.dumps(piece, indent=1) + "\n")
    print("all pieces are there")


def calibrate(networks: Path, path: Path) -> float:
    """Find what a server with fixed N=1 answers at most, in inputs a second: load 1 for all."""
    if path.exists():
        return json.loads(path.read_text())["slow_capacity"]
    schedule = poisson(250.0, SECONDS, np.random.default_rng(2))
    with running(networks, "fixed 1") as (url, _):
        with urlopen(url, timeout=2) as response:
            (mode,) = json.load(response)["parameters"]["modes"]
        result = asyncio.run(send(url, schedule, Samples.read(networks / "samples.npz"), slo=SLO))
    found = {
        "slow_capacity": int((result.status == 200).sum()) / SECONDS,
        "pass_ms": mode["pass_ms"],
        "engine": ENGINE,
        "slo": SLO,
    }
    write_text(path, json.dumps(found, indent=1) + "\n")
    return found["slow_capacity"]


def schedules(workload: str, capacity: float) -> dict[float, np.ndarray]:
    """Make the arrivals of a workload, by load; the same for every contender."""
    if workload == "poisson":
        return {load: poisson(load * capacity, SECONDS, np.random.default_rng(0)) for load in LOADS}
    if workload == "spike":
        low, high = SPIKE
        rng = np.random.default_rng(0)
        return {high: step(low * capacity, SPIKE_SECONDS, rng, times=high / low)}
    file = Path(os.environ["MIMONETS_ARRIVALS"]) / f"{workload}.txt"
    found = {}
    for load in TRACES[workload]:
        times = read_trace(file, rate=load * capacity)
        found[load] = times[times < 2 * SECONDS]
    return found


@contextmanager
def running(networks: Path, contender: str) -> Iterator[tuple[str, int]]:
    """Run a server; gives the address of its model and the number of its session."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}{PATH}"
    script = Path(__file__).with_name("serving_contenders.py")
    prefix = os.environ.get("PREFIX", "").split()  # such as taskset or nice
    command = [*prefix, sys.executable, script, contender, networks, port, SLO]
    server = subprocess.Popen(
        list(map(str, command)), start_new_session=True, stdout=subprocess.DEVNULL
    )
    try:
        wait_until_ready(url, server)
        yield url, server.pid
    finally:
        stop(server)


def run_piece(networks: Path, contender: str, workload: str, capacity: float) -> dict:
    """Start a server, send all loads of a workload, and stop it."""
    samples = Samples.read(networks / "samples.npz")
    rows, is_ours = [], contender in OURS
    with running(networks, contender) as (url, session):
        warm_up = poisson(0.3 * capacity, 2.0, np.random.default_rng(1))
        asyncio.run(send(url, warm_up, samples, slo=SLO, binary=is_ours))
        for load, schedule in schedules(workload, capacity).items():
            before = Usage.now(session)
            result = asyncio.run(send(url, schedule, samples, slo=SLO, binary=is_ours))
            row = {"load": load, **result.summary(), **Usage.now(session).since(before)}
            if workload == "spike":
                row["timeline"] = timeline(result)
            rows.append(row)
            print(f"{workload} {contender} {load}: {row['right_in_time']:.4f}", flush=True)
    return {
        "contender": contender,
        "workload": workload,
        "slow_capacity": capacity,
        "environment": environment(),
        "rows": rows,
    }


def wait_until_ready(url: str, server: subprocess.Popen) -> None:
    """Wait until a server answers; raises RuntimeError if it ends or takes too long."""
    until = time.monotonic() + START
    while time.monotonic() < until and server.poll() is None:
        try:
            with urlopen(url, timeout=2) as response:
                if response.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"no server at {url}")


def stop(server: subprocess.Popen) -> None:
    """End a server and every process of its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
            server.wait(timeout=10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


class Usage:
    """Processor seconds of the whole machine, of a server's session, and of this process."""

    def __init__(self, at: float, machine: float, server: float, ours: float) -> None:
        self.at, self.machine, self.server, self.ours = at, machine, server, ours

    @classmethod
    def now(cls, session: int) -> "Usage":
        """Read /proc."""
        tick = os.sysconf("SC_CLK_TCK")
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
        busy = sum(fields[:8]) - fields[3] - fields[4]
        server = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                words = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(words[3]) == session:
                server += int(words[11]) + int(words[12])
        return cls(time.monotonic(), busy / tick, server / tick, time.process_time())

    def since(self, before: "Usage") -> dict[str, float]:
        """Give the mean number of cores that each used."""
        seconds = self.at - before.at
        server = (self.server - before.server) / seconds
        ours = (self.ours - before.ours) / seconds
        busy = (self.machine - before.machine) / seconds
        return {
            "server_cores": round(server, 3),
            "generator_cores": round(ours, 3),
            "other_cores": round(max(0.0, busy - server - ours), 3),
        }


def timeline(result: LoadResult) -> dict[str, list[float]]:
    """Give the course of a run, second by second."""
    return Outcome(
        arrival=result.intended,
        latency=np.where(result.status == 200, result.latency, np.nan),
        accuracy=(result.right & (result.status == 200)).astype(float),
        active=result.active,
        refused=result.status == 429,
        slo=result.slo,
    ).timeline(1.0)


def report(pieces: str, folder: str) -> None:
    """Gather all pieces into one file and draw them."""
    from serving_plots import draw

    found = [json.loads(path.read_text()) for path in sorted(Path(pieces).glob("*-*.json"))]
    record = {
        "environment": {**found[-1]["environment"], "command": "benchmarks/serving.py"},
        "slo": SLO,
        **json.loads((Path(pieces) / "capacity.json").read_text()),
        "pieces": [
            {key: value for key, value in piece.items() if key not in ("environment",)}
            for piece in found
        ],
    }
    write_text(Path(folder) / "serving-real.json", json.dumps(record, indent=1) + "\n")
    draw(record, Path(folder) / "serving-real.png")


if __name__ == "__main__":
    {"measure": measure, "report": report}[sys.argv[1]](*sys.argv[2:])
