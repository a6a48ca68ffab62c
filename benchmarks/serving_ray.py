"""Measure the first responder: a spike hits one replica while Ray Serve starts a second one.

python benchmarks/serving_ray.py measure NETWORKS PIECES policy
python benchmarks/serving_ray.py measure NETWORKS PIECES "fixed 1"
python benchmarks/serving_ray.py report PIECES results

With superposition the replica that is there takes the spike at once, less accurately; with one
input per pass, requests are refused until the second one is ready. Both on one machine, whose cores
they share with Ray, so that the second replica adds less than it would elsewhere. Every pass is run
REPEAT times, to stand for a larger network: at hundreds of requests a second it is Ray's proxy that
is measured here.
"""

import asyncio
import json
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from serving_contenders import ENGINE, PATH

from mimonets._figure import legend_below, new_figure, rule_colour, save_figure
from mimonets._files import write_text
from mimonets.evaluation.provenance import environment
from mimonets.loadtest.load import Samples, send
from mimonets.loadtest.workloads import poisson
from serving import SLO, timeline

REPEAT = 8
BUDGET = REPEAT * SLO  # seconds to answer
SECONDS, SPIKE_AT = 50.0, 5.0
LOW, HIGH = 0.5, 2.5  # loads / slow capacity of one replica
ONLY = {"policy": None, "fixed 1": 1}  # the only mode, if there is but one


def make_server(networks: Path, only: int | None):
    """Make the server of a replica: all modes, or one."""
    from mimonets.cli.open_models import open_network
    from mimonets.serving.server import Server, ServerSettings

    def opened():
        network = open_network("network", [networks / "gears"], ENGINE, 1)
        if only is not None:
            network.points = [point for point in network.points if point.inputs_per_pass == only]
        network.points = [replace(p, run=partial(run_often, p.run)) for p in network.points]
        return network

    return Server({"network": opened}, ServerSettings(slo=BUDGET))


def run_often(run, inputs):
    """Run a pass several times, as long as a larger network would take."""
    for _ in range(REPEAT - 1):
        run(inputs)
    return run(inputs)


def measure(networks: Path, only: int | None, capacity: float, port: int) -> dict:
    """Start one replica, send the spike, and start another as it comes."""
    import ray
    from ray import serve

    from mimonets.serving.ray import on_ray, run_on_ray

    make = partial(make_server, networks, only)
    run_on_ray(make, replicas=1, port=port, block=False)
    rng = np.random.default_rng(0)
    before = poisson(LOW * capacity, SPIKE_AT, rng)
    spike = SPIKE_AT + poisson(HIGH * capacity, SECONDS - SPIKE_AT, rng)
    schedule = np.concatenate([before, spike])
    ready_after: list[float] = []

    def scale() -> None:
        started = time.monotonic()
        serve.run(on_ray(make, replicas=2), route_prefix="/")
        ready_after.append(time.monotonic() - started)

    async def load():
        samples = Samples.read(networks / "samples.npz")
        sending = asyncio.create_task(
            send(f"http://127.0.0.1:{port}{PATH}", schedule, samples, slo=BUDGET)
        )
        await asyncio.sleep(SPIKE_AT)
        await asyncio.to_thread(scale)
        return await sending

    result = asyncio.run(load())
    serve.shutdown()
    ray.shutdown()
    (ready,) = ready_after
    alone = (result.intended >= SPIKE_AT) & (result.intended < SPIKE_AT + ready)
    good = (result.status == 200) & (result.latency <= BUDGET) & result.right
    return {
        "second_replica_after": ready,
        "right_in_time_until_then": float(good[alone].mean()),
        "right_in_time_in_the_spike": float(good[result.intended >= SPIKE_AT].mean()),
        **result.summary(),
        "timeline": timeline(result),
    }


def measure_one(networks: str, pieces: str, name: str) -> None:
    """Measure with superposition (policy) or without (fixed 1), and keep it as a piece."""
    capacity = slow_capacity(pieces)
    row = measure(Path(networks).resolve(), ONLY[name], capacity, 18_700 + os.getpid() % 1000)
    print(name, row["second_replica_after"], row["right_in_time_until_then"])
    write_text(Path(pieces) / f"ray {name}.json", json.dumps(row, indent=1) + "\n")


def slow_capacity(pieces: str) -> float:
    """Give what one replica answers at most with one input per pass, in inputs a second."""
    return json.loads((Path(pieces) / "capacity.json").read_text())["slow_capacity"] / REPEAT


def report(pieces: str, folder: str) -> None:
    """Gather both pieces into one file, and draw them."""
    rows = {name: json.loads((Path(pieces) / f"ray {name}.json").read_text()) for name in ONLY}
    killed = Path(pieces) / "ray killed.json"  # printed by tests/serving/test_ray.py
    record = {
        "environment": {**environment(), "command": "benchmarks/serving_ray.py"},
        "slo": BUDGET,
        "slow_capacity": slow_capacity(pieces),
        "loads": [LOW, HIGH],
        "spike_at": SPIKE_AT,
        "rows": rows,
        "killed": json.loads(killed.read_text()) if killed.exists() else None,
    }
    write_text(Path(folder) / "serving-ray.json", json.dumps(record, indent=1) + "\n")
    draw(record, Path(folder) / "serving-ray.png")


def draw(record: dict, path: Path) -> Path:
    """Draw the share that is right and in time, and when the second replicas were ready."""
    figure = new_figure(7.6, 4)
    place = figure.subplots()
    for name, row in record["rows"].items():
        label = {"policy": "by load", "fixed 1": "always 1 active"}[name]
        colour = rule_colour(label)
        line = row["timeline"]
        shares = [100 * share for share in line["right_in_time"]]
        place.plot(line["seconds"], shares, color=colour, label=label)
        ready = record["spike_at"] + row["second_replica_after"]
        place.axvline(ready, color=colour, ls=":", label=f"{label}: second replica ready")
    place.axvline(record["spike_at"], color="tab:red", lw=0.8, label="the spike starts")
    place.set(xlabel="seconds", ylabel="right and in time, % of offered", ylim=(0, 105))
    place.set_title("A spike on Ray Serve, the digits network in tiles", fontsize=10)
    place.grid(alpha=0.3)
    legend_below(figure, place.get_lines())
    return save_figure(figure, path)


if __name__ == "__main__":
    {"measure": measure_one, "report": report}[sys.argv[1]](*sys.argv[2:])
