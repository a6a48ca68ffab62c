"""The servers of the serving benchmark, each started by its name.

python benchmarks/serving_contenders.py NAME NETWORKS PORT SLO
"""

import os
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

OURS = ("policy", "fixed 1", "fixed 2", "fixed 3", "fixed 4", "big/small")
SIZES = ("cifar", "cifar-paper")  # untrained networks, to measure what the server itself takes
OTHERS = ("LitServe, 1 active", "LitServe, 4 active", "Ray Serve, 1 active", "Ray Serve, 4 active")
PATH = "/v2/models/network"
PASSES = 4  # of the largest batch of LitServe and Ray Serve
BATCH_WAIT = 0.005  # seconds that they wait for a batch to fill
ENGINE = "onnxruntime"


def ours(name: str, networks: Path, port: int, slo: float) -> None:
    """Serve with mimonets: all modes, one of them, or a big and a small network."""
    from mimonets.cli.open_models import open_network
    from mimonets.serving.run import run_server
    from mimonets.serving.server import Server, ServerSettings

    def opened():
        folders = ["big", "small"] if name == "big/small" else [name if name in SIZES else "gears"]
        network = open_network("network", [networks / one for one in folders], ENGINE, 1)
        if name.startswith("fixed"):
            network.points = [
                p for p in network.points if p.inputs_per_pass == int(name.split()[1])
            ]
        network.points = [_timed(point) for point in network.points]
        return network

    run_server(Server({"network": opened}, ServerSettings(slo=slo)), port=port)


def _timed(point):
    """Note on the inference thread's own clock how long the model itself runs."""
    from dataclasses import replace

    file = os.environ.get("MODEL_SECONDS")
    if not file:
        return point
    spent, last = [0.0, 0], [0.0]

    def run(inputs):
        started = time.thread_time()
        answers = point.run(inputs)
        spent[0] += time.thread_time() - started
        spent[1] += len(inputs)
        if time.monotonic() - last[0] > 0.1:
            last[0] = time.monotonic()
            Path(f"{file}.{point.inputs_per_pass}{point.name[0]}").write_text(
                f"{spent[0]} {spent[1]}"
            )
        return answers

    return replace(point, run=run)


def open_engine(networks: Path, active: int):
    """Open the network and run it once; also gives what it takes."""
    from mimonets.inference import Engine

    engine = Engine(networks / "gears", ENGINE, 1)
    engine(np.zeros((active, *engine.input_spec.shape), np.float32), active)
    return engine, engine.input_spec


def read_input(request: dict, spec) -> np.ndarray:
    """Read the one input of a request."""
    (tensor,) = request["inputs"]
    return spec.prepare(np.array(tensor["data"], dtype=np.uint8).reshape(tensor["shape"]))[0]


def answer_of(label: int, active: int) -> dict:
    """Write an answer as the generator reads it."""
    return {"outputs": [{"data": [int(label)]}], "parameters": {"active_streams": active}}


def litserve(active: int, networks: Path, port: int, slo: float) -> None:
    """Serve one mode with LitServe, in dynamic batches."""
    import litserve as ls
    from serving_litserve import Classifier

    api = Classifier(
        max_batch_size=PASSES * active, batch_timeout=BATCH_WAIT, api_path=f"{PATH}/infer"
    )
    api.networks, api.active = networks, active
    server = ls.LitServer(api, accelerator="cpu", timeout=slo, workers_per_device=1)
    server.app.add_api_route(PATH, lambda: {"ready": True})
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning")


def ray_serve(active: int, networks: Path, port: int, slo: float) -> None:
    """Serve one mode with Ray Serve, in dynamic batches; it refuses what it cannot queue."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # else it gives way to everybody else
    import ray
    from fastapi import FastAPI, Request
    from ray import serve

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    app = FastAPI()

    @serve.deployment(max_ongoing_requests=int(300 * slo), max_queued_requests=8)
    @serve.ingress(app)
    class Classifier:
        def __init__(self):
            self.engine, self.spec = open_engine(networks, active)

        @app.get(PATH)
        async def ready(self):
            return {"ready": True}

        @app.post(f"{PATH}/infer")
        async def infer(self, request: Request):
            label = await self.run(read_input(await request.json(), self.spec))
            return answer_of(label, active)

        @serve.batch(max_batch_size=PASSES * active, batch_wait_timeout_s=BATCH_WAIT)
        async def run(self, inputs):
            import asyncio

            batch = np.stack(inputs)
            return await asyncio.to_thread(self.run_batch, batch)

        def run_batch(self, batch):
            return np.asarray(self.engine(batch, active)).argmax(axis=1).tolist()

    serve.run(Classifier.bind(), route_prefix="/")
    while True:
        time.sleep(1)


def main(name: str, networks: str, port: str, slo: str) -> None:
    """Serve until killed."""
    if name in (*OURS, *SIZES):
        start = partial(ours, name)
    else:
        kind, _, mode = name.partition(", ")
        start = partial(litserve if kind == "LitServe" else ray_serve, int(mode.split()[0]))
    start(Path(networks).resolve(), int(port), float(slo))


if __name__ == "__main__":
    main(*sys.argv[1:])
