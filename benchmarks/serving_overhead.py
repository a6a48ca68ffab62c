"""Measure what the server costs besides the network: processor time at full load, latency at idle.

python benchmarks/serving_overhead.py NETWORKS results

Overhead is the processor time of the whole server process, without that of the inference thread
inside the engine, over the latter. Full load is as many requests as the server answers at most,
each with one input as a binary tensor over connections that stay open. At idle, requests come one
at a time; what an answer takes longer than the engine is the server, the client and what is between
them. Run it with the server on one core and this process on another (PREFIX="taskset -c 1").
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from serving_contenders import ENGINE

from mimonets._files import write_text
from mimonets.evaluation.provenance import environment
from mimonets.loadtest.load import Bodies, Samples, send
from mimonets.loadtest.workloads import poisson
from serving import SLO, running, wait_until_ready

FLOOD, SECONDS = 3.0, 8.0  # to find what it answers at most, and to measure
ASKED, WARM = 60, 10  # requests at idle, and those of them that only warm up
NETWORKS = {  # contender: (network, seconds to answer)
    "policy": ("digits, 16 times as wide", SLO),
    "cifar": ("MIMOConv-16-4, 32x32x3", SLO),
    "cifar-paper": ("MIMOConv-28-10, 32x32x3", 8 * SLO),
}


def main(networks: str, folder: str, names: str = ",".join(NETWORKS)) -> None:
    """Measure every network and write one file."""
    place, rows = Path(networks), []
    for name in names.split(","):
        samples = Samples.read(
            place / ("samples.npz" if name == "policy" else f"{name}-samples.npz")
        )
        network, slo = NETWORKS[name]
        with tempfile.TemporaryDirectory() as scratch:
            os.environ["MODEL_SECONDS"] = str(Path(scratch) / "model")
            with running(place, name, slo) as (url, session):
                wait_until_ready(url, session)
                row = {"network": network, "slo": slo, "idle": idle(url, samples, slo)}
                row["full_load"] = full_load(url, session, samples, Path(scratch), slo)
        rows.append(row)
        print(json.dumps(row, indent=1), flush=True)
    command = "benchmarks/serving_overhead.py"
    record = {"environment": {**environment(), "command": command}, "engine": ENGINE}
    text = json.dumps({**record, "rows": rows}, indent=1)
    write_text(Path(folder) / "serving-overhead.json", text + "\n")


def idle(url: str, samples: Samples, slo: float) -> dict[str, float]:
    """One request at a time: latency beside what the server says the model took."""
    import aiohttp

    bodies = Bodies(samples, {"timeout": int(1e6 * slo)})

    async def ask() -> list[tuple[float, float]]:
        found = []
        async with aiohttp.ClientSession() as client:
            for row in range(ASKED):
                body, headers = bodies.of(row % len(samples.inputs))
                started = time.perf_counter()
                async with client.post(f"{url}/infer", data=body, headers=headers) as response:
                    answer = json.loads(await response.read())
                seconds = time.perf_counter() - started
                found.append((seconds, answer["parameters"]["compute_us"] / 1e6))
        return found

    latency, model = np.array(asyncio.run(ask())[WARM:]).T
    return {
        "p50_ms": 1000 * float(np.median(latency)),
        "model_p50_ms": 1000 * float(np.median(model)),
        "above_model_p50_ms": 1000 * float(np.median(latency - model)),
    }


def full_load(
    url: str, session: int, samples: Samples, scratch: Path, slo: float
) -> dict[str, float]:
    """Offer what it answers at most, and compare its processor time with the model's own."""
    capacity = most(url, samples, slo)
    before = cpu_seconds(session), model_seconds(scratch)
    offered = poisson(capacity, SECONDS, np.random.default_rng(1))
    result = asyncio.run(send(url, offered, samples, slo=slo))
    time.sleep(0.5)  # the last job, and the clocks of the model
    server = cpu_seconds(session) - before[0]
    model = model_seconds(scratch) - before[1]
    answered = int((result.status == 200).sum())
    return {
        "offered_per_second": len(offered) / SECONDS,
        "answered": answered / len(offered),
        "active": float(result.active[result.status == 200].mean()),
        "server_cpu_seconds": server,
        "model_cpu_seconds": model,
        "model_ms_per_answer": 1000 * model / answered,
        "overhead_ms_per_request": 1000 * (server - model) / len(offered),
        "overhead_over_model": (server - model) / model,
    }


def most(url: str, samples: Samples, slo: float = SLO) -> float:
    """Find how many requests a second are answered, however many come."""
    flood = poisson(600.0, FLOOD, np.random.default_rng(0))
    result = asyncio.run(send(url, flood, samples, slo=slo))
    time.sleep(0.5)
    in_it = (result.status == 200) & (result.intended + result.latency <= FLOOD)
    return int(in_it.sum()) / FLOOD


def cpu_seconds(process: int) -> float:
    """Add up the processor time of all threads of a process."""
    threads = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in threads) / 1e9


def model_seconds(scratch: Path) -> float:
    """Add up what the server's own clocks of the model say."""
    return sum(float(path.read_text().split()[0]) for path in scratch.glob("model.*"))


if __name__ == "__main__":
    main(*sys.argv[1:])
