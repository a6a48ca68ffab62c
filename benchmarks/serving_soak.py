"""Soak the server: twice what it can answer, in an open loop, for ten minutes.

python benchmarks/serving_soak.py NETWORKS results [MINUTES]

Run it with the server on one core (PREFIX="taskset -c 1") and this process on another. Beside the
flood, a trickle asks for slow mode: these inputs are alone in their passes, so every one of their
answers must be the network's own.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import numpy as np
from serving_contenders import ENGINE
from serving_overhead import most

import mimonets as mn
from mimonets._files import write_text
from mimonets.evaluation.provenance import environment
from mimonets.loadtest.load import Samples, send
from mimonets.loadtest.workloads import poisson
from serving import SLO, Usage, running, wait_until_ready

CHUNK = 20.0  # seconds
TRICKLE = 4.0  # requests a second


def main(networks: str, folder: str, minutes: str = "10") -> None:
    """Measure capacity and the soak, and write one file."""
    place = Path(networks)
    samples = Samples.read(place / "samples.npz")
    record = {"environment": environment(), "slo": SLO, "engine": ENGINE}
    with running(place, "policy") as (url, session):
        wait_until_ready(url, session)
        capacity = most(url, samples)
        record["answers_per_second"] = capacity
        count = max(1, round(60 * float(minutes) / CHUNK))
        record["soak"] = soak(url, session, samples, own_answers(place, samples), capacity, count)
    record["environment"]["command"] = "benchmarks/serving_soak.py"
    write_text(Path(folder) / "serving-soak.json", json.dumps(record, indent=1) + "\n")


def own_answers(place: Path, samples: Samples) -> Samples:
    """Label every sample with what the network itself answers when it is alone."""
    engine = mn.Engine(place / "gears", ENGINE, 1)
    prepared = engine.input_spec.prepare(samples.inputs).astype(np.float32)
    return Samples(samples.inputs, np.asarray(engine(prepared, 1)).argmax(axis=1))


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
                "seconds": CHUNK,
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
