"""Measure real servers with a real network under load: ours, LitServe and Ray Serve.

All servers of a set run side by side and are loaded one after the other with the same arrivals and
the same inputs, so that whatever else the machine does hits all of them. In pieces, one load of one
workload each, that are kept in a folder; call it until all are there, then draw:

python benchmarks/serving_networks.py NETWORKS
python benchmarks/serving.py measure NETWORKS PIECES [SECONDS] [SET,...] [WORKLOAD,...]
python benchmarks/serving.py report PIECES NETWORKS results

Traces are read from the folder MIMONETS_ARRIVALS. The load comes from this process, on the same
cores as the servers: its share of the processor is in every row, and so is that of others.
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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import numpy as np
from serving_contenders import ENGINE, OTHERS, OURS, PATH

from mimonets._files import write_text
from mimonets.evaluation.provenance import environment
from mimonets.loadtest.load import LoadResult, Samples, send
from mimonets.loadtest.simulator import Outcome
from mimonets.loadtest.workloads import poisson, read_trace, step

SLO = 0.25  # seconds
SETS = {
    "ours": OURS,
    "four": ("policy", "fixed 1", "fixed 4", "big/small"),
    "pair": ("policy", "fixed 4"),  # again and again at high loads, where they differ little
    "others": ("policy", *OTHERS),
}
LOADS = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0)  # offered / slow capacity
TRACES = {"azure-llm-2023-code": 1.0, "azure-llm-2023-conv": 2.0}  # load of their busiest part
SLOT = 8.0  # seconds of one load of one server
PAIR_LOADS, PAIR_ROUNDS = (2.0, 3.0, 4.0, 5.0), (1, 2, 3, 4)  # each with other arrivals
SPIKE = (0.5, 3.2)  # loads before and in it
START = 90.0  # seconds that a server may take to start


def slots(kind: str, workload: str) -> list[tuple[float, int]]:
    """List load and round of every piece of a workload."""
    if kind == "pair":
        return [(load, number) for load in PAIR_LOADS for number in PAIR_ROUNDS]
    if workload == "poisson":
        return [(load, 0) for load in LOADS]
    return [(SPIKE[1] if workload == "spike" else TRACES[workload], 0)]


def measure(
    networks: str,
    pieces: str,
    seconds: str = "150",
    sets: str = "ours,others",
    workloads: str = "poisson,spike,azure-llm-2023-code,azure-llm-2023-conv",
) -> None:
    """Measure what is not there yet, for so many seconds."""
    until, place = time.monotonic() + float(seconds), Path(pieces)
    place.mkdir(parents=True, exist_ok=True)
    capacity = calibrate(Path(networks), place / "capacity.json")
    for kind in sets.split(","):
        left = [
            (place / f"{kind}-{workload}-{load:g}-{number}.json", workload, load, number)
            for workload in workloads.split(",")
            for load, number in slots(kind, workload)
        ]
        left = [slot for slot in left if not slot[0].exists()]
        if not left or time.monotonic() > until:
            continue
        with ExitStack() as stack:
            servers = {
                name: stack.enter_context(running(Path(networks), name)) for name in SETS[kind]
            }
            for url, session in servers.values():
                wait_until_ready(url, session)
            for path, workload, load, number in left:
                if time.monotonic() > until:
                    break
                piece = run_piece(Path(networks), servers, workload, load, number, capacity)
                write_text(path, json.dumps(piece, indent=1) + "\n")


def calibrate(networks: Path, path: Path) -> float:
    """Find what a server with fixed N=1 answers at most, in inputs a second: load 1 for all."""
    if path.exists():
        return json.loads(path.read_text())["slow_capacity"]
    schedule = poisson(250.0, SLOT, np.random.default_rng(2))
    with running(networks, "fixed 1") as (url, session):
        wait_until_ready(url, session)
        with urlopen(url, timeout=2) as response:
            (mode,) = json.load(response)["parameters"]["modes"]
        result = asyncio.run(send(url, schedule, Samples.read(networks / "samples.npz"), slo=SLO))
    found = {
        "slow_capacity": int((result.status == 200).sum()) / SLOT,
        "pass_ms": mode["pass_ms"],
        "engine": ENGINE,
        "slo": SLO,
    }
    write_text(path, json.dumps(found, indent=1) + "\n")
    return found["slow_capacity"]


def arrivals(workload: str, load: float, number: int, capacity: float) -> np.ndarray:
    """Make the arrivals of a piece; the same for every contender."""
    rng = np.random.default_rng(number)
    if workload == "poisson":
        return poisson(load * capacity, SLOT, rng)
    if workload == "spike":
        return step(SPIKE[0] * capacity, 2.5 * SLOT, rng, times=SPIKE[1] / SPIKE[0])
    times = read_trace(Path(os.environ["MIMONETS_ARRIVALS"]) / f"{workload}.txt")
    count = int(load * capacity * 2 * SLOT)
    start = int(np.argmin(times[count - 1 :] - times[: len(times) - count + 1]))
    busiest = times[start : start + count] - times[start]  # so many in the shortest time
    return busiest * (2 * SLOT / busiest[-1])


@contextmanager
def running(networks: Path, contender: str, slo: float = SLO) -> Iterator[tuple[str, int]]:
    """Run a server; gives the address of its model and the number of its session."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}{PATH}"
    script = Path(__file__).with_name("serving_contenders.py")
    prefix = os.environ.get("PREFIX", "").split()  # such as taskset or nice
    command = [*prefix, sys.executable, script, contender, networks, port, slo]
    server = subprocess.Popen(
        list(map(str, command)), start_new_session=True, stdout=subprocess.DEVNULL
    )
    try:
        yield url, server.pid
    finally:
        stop(server)


def run_piece(
    networks: Path,
    servers: dict[str, tuple[str, int]],
    workload: str,
    load: float,
    number: int,
    capacity: float,
) -> dict:
    """Send one load to every server, one after the other."""
    samples = Samples.read(networks / "samples.npz")
    schedule = arrivals(workload, load, number, capacity)
    rows = {}
    order = list(servers) if number % 2 == 0 else list(servers)[::-1]  # nobody is always first
    for name in order:
        url, session = servers[name]
        before = Usage.now(session)
        result = asyncio.run(
            send(url, schedule, samples, slo=SLO, binary=name in OURS, seed=number)
        )
        row = {"contender": name, **result.summary(), **Usage.now(session).since(before)}
        if workload != "poisson":
            row["timeline"] = timeline(result)
        rows[name] = row
        print(f"{workload} {load} {name}: {row['right_in_time']:.4f}", flush=True)
        time.sleep(0.5)  # what is still under way
    found = [rows[name] for name in servers]
    return {"workload": workload, "load": load, "round": number, "rows": found}


def wait_until_ready(url: str, session: int) -> None:
    """Wait until a server answers; raises RuntimeError if it takes too long."""
    until = time.monotonic() + START
    while time.monotonic() < until:
        try:
            with urlopen(url, timeout=2) as response:
                if response.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"no server at {url}, session {session}")


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


def simulated(piece: dict, accuracies: dict[int, float], capacity: float) -> dict[str, dict]:
    """Foretell what every fixed mode and the policy do with the same arrivals.

    A pass takes as long as in the server with fixed N=1, if that was busy all the time, else as
    long as at the start.
    """
    from mimonets.loadtest.comparison import contenders
    from mimonets.loadtest.simulator import simulate, superposed_points
    from mimonets.serving.operating_points import ServiceTime, useful_points

    rows = {row["contender"]: row for row in piece["rows"]}
    is_busy = rows["fixed 1"]["refused"] > 0.05
    answers = rows["fixed 1"]["status"]["200"] / SLOT if is_busy else capacity
    time = ServiceTime(per_pass=1 / answers)
    points = useful_points(superposed_points(accuracies, time))
    names = {
        f"fixed, {point.inputs_per_pass} active": f"fixed {point.inputs_per_pass}"
        for point in points
    }
    schedule = arrivals(piece["workload"], piece["load"], piece["round"], capacity)
    found = {}
    for rule, policy in contenders(points).items():
        name = {**names, "drain test": "policy"}.get(rule)
        if name is not None:
            rng = np.random.default_rng(0)
            outcome = simulate(policy, schedule, SLO, rng=rng, overhead=0.01, truth=points)
            found[name] = outcome.summary()
    return found


def report(pieces: str, networks: str, folder: str) -> None:
    """Gather all pieces into one file, foretell them, and draw them."""
    from serving_plots import draw

    from mimonets.inference import read_manifest

    place = Path(pieces)
    paths = sorted(place.glob("*-*-*.json"), key=lambda path: (path.name < "ours", path.name))
    found = [  # those of our own set first
        {"set": path.name.partition("-")[0], **json.loads(path.read_text())} for path in paths
    ]
    capacity = json.loads((place / "capacity.json").read_text())["slow_capacity"]
    modes = read_manifest(Path(networks) / "gears").modes
    accuracies = {mode.active_streams: mode.accuracy["float32"] for mode in modes}
    for piece in found:
        if piece["workload"] == "poisson" and piece["rows"][1]["contender"] == "fixed 1":
            foretold = simulated(piece, accuracies, capacity)
            for row in piece["rows"]:
                if row["contender"] in foretold:
                    row["simulated"] = foretold[row["contender"]]
    record = {
        "environment": {**environment(), "command": "benchmarks/serving.py"},
        **json.loads((place / "capacity.json").read_text()),
        "pieces": found,
    }
    write_text(Path(folder) / "serving-real.json", json.dumps(record, indent=1) + "\n")
    draw(record, Path(folder) / "serving-real.png")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # servers are stopped then, too
    {"measure": measure, "report": report}[sys.argv[1]](*sys.argv[2:])
