"""Soak the server: twice what it can answer, in an open loop, for ten minutes.

python benchmarks/serving_soak.py NETWORKS results [MINUTES]

Beside the flood, a trickle asks for slow mode: these inputs are alone in their passes, so every one
of their answers must be the network's own. Also measured, before the flood: latency at idle, and at
full load the processor time that is not the model's.
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

import mimonets as mn
from mimonets._files import write_text
from mimonets.evaluation.provenance import environment
from mimonets.serving.load import Samples, send
from mimonets.serving.workloads import poisson
from serving import SLO, Usage, running, wait_until_ready

CHUNK = 20.0  # seconds
TRICKLE = 4.0  # requests a second


def main(networks: str, folder: str, minutes: str = "10") -> None:
    """Measure overhead, capacity and the soak, and write one file."""
    place = Path(networks)
    samples = Samples.read(place / "samples.npz")
    record = {"environment": environment(), "slo": SLO, "engine": ENGINE}
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["MODEL_SECONDS"] = str(Path(scratch) / "model")
        with running(place, "policy") as (url, session):
            wait_until_ready(url, session)
            record["idle"] = idle(url, samples)
            record["full_load"] = full_load(url, session, samples, Path(scratch))
            capacity = record["full_load"]["answers_per_second"]
            count = max(1, round(60 * float(minutes) / CHUNK))
            record["soak"] = soak(
                url, session, samples, own_answers(place, samples), capacity, count
            )
    record["environment"]["command"] = "benchmarks/serving_soak.py"
    write_text(Path(folder) / "serving-soak.json", json.dumps(record, indent=1) + "\n")


def own_answers(place: Path, samples: Samples) -> Samples:
    """Label every sample with what the network itself answers when it is alone."""
    engine = mn.Engine(place / "gears", ENGINE, 1)
    prepared = engine.input_spec.prepare(samples.inputs).astype(np.float32)
    return Samples(samples.inputs, np.asarray(engine(prepared, 1)).argmax(axis=1))


def idle(url: str, samples: Samples) -> dict:
    """One request at a time: latency beside what the server says the model took."""
    import aiohttp

    from mimonets.serving.load import Bodies

    bodies = Bodies(samples, {"timeout": int(1e6 * SLO)})

    async def ask() -> list[tuple[float, float]]:
        found = []
        async with aiohttp.ClientSession() as client:
            for row in range(200):
                body, length = bodies.of(row % len(samples.inputs))
                headers = {"Inference-Header-Content-Length": str(length)}
                started = time.perf_counter()
                async with client.post(f"{url}/infer", data=body, headers=headers) as response:
                    answer = json.loads(await response.read())
                found.append(
                    (time.perf_counter() - started, answer["parameters"]["compute_us"] / 1e6)
                )
        return found

    latency, model = np.array(asyncio.run(ask())[20:]).T
    return {
        "p50_ms": 1000 * float(np.median(latency)),
        "model_p50_ms": 1000 * float(np.median(model)),
        "above_model_p50_ms": 1000 * float(np.median(latency - model)),
    }


def full_load(url: str, session: int, samples: Samples, scratch: Path) -> dict:
    """Offer more than it can answer, and compare its processor time with the model's own."""
    offered = poisson(600.0, 10.0, np.random.default_rng(0))
    before, model_before = Usage.now(session), model_seconds(scratch)
    result = asyncio.run(send(url, offered, samples, slo=SLO))
    time.sleep(0.5)
    after, model_after = Usage.now(session), model_seconds(scratch)
    model = model_after - model_before
    server = after.server - before.server
    answered = int((result.status == 200).sum())
    return {
        "answers_per_second": answered / 10.0,
        "refused": float((result.status == 429).mean()),
        "model_cpu_seconds": model,
        "server_cpu_seconds": server,
        "overhead_over_model": (server - model) / model,
        "overhead_ms_per_request": 1000 * (server - model) / len(offered),
        "model_ms_per_answer": 1000 * model / answered,
    }


def model_seconds(scratch: Path) -> float:
    """Add up what the server's own clocks of the model say."""
    return sum(float(path.read_text().split()[0]) for path in scratch.glob("model.*"))


def memory(session: int) -> float:
    """Give the resident memory of the server in MB."""
    pages = int(Path(f"/proc/{session}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def soak(
    url: str, session: int, samples: Samples, own: Samples, capacity: float, count: int
) -> dict:
    """Send twice the capacity, chunk after chunk."""

    async def chunk(number: int):
        rng = np.random.default_rng(number)
        flood = send(url, poisson(2 * capacity, CHUNK, rng), samples, slo=SLO, seed=number)
        alone = {"mode": "slow", "priority": 0, "timeout": int(4e6 * SLO)}
        trickle = send(
            url, poisson(TRICKLE, CHUNK, rng), own, slo=4 * SLO, parameters=alone, seed=number
        )
        return await asyncio.gather(flood, trickle)

    chunks, refusals = [], []
    for number in range(count):
        before = Usage.now(session)
        flood, trickle = asyncio.run(chunk(number))
        answered = trickle.status == 200
        refusals.append(flood.latency[flood.status == 429])
        chunks.append(
            {
                **flood.summary(),
                "refused_p50": float(np.nanmedian(refusals[-1])),
                "refused_p99": float(np.nanpercentile(refusals[-1], 99)),
                "trickle": len(answered),
                "trickle_answered": int(answered.sum()),
                "trickle_wrong": int((answered & ~trickle.right).sum()),
                "memory_mb": memory(session),
                **Usage.now(session).since(before),
            }
        )
        print(json.dumps(chunks[-1]), flush=True)
    status: dict[str, int] = {}
    for row in chunks:
        for code, n in row["status"].items():
            status[code] = status.get(code, 0) + n
    offered = sum(row["offered"] for row in chunks)
    return {
        "minutes": count * CHUNK / 60,
        "offered": offered,
        "status": status,
        "lost": offered - sum(status.values()) + status.get("0", 0),
        "wrong_of_slow": sum(row["trickle_wrong"] for row in chunks),
        "answered_of_slow": sum(row["trickle_answered"] for row in chunks),
        "p99_worst_chunk": max(row["p99"] for row in chunks),
        "p99_median_chunk": float(np.median([row["p99"] for row in chunks])),
        "memory_mb": [row["memory_mb"] for row in chunks],
        "chunks": chunks,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
