"""Engines and servers for tests: no network, no waiting beyond what a test asks for."""

import threading
import time
from contextlib import asynccontextmanager, contextmanager

import httpx
import numpy as np

from mimonets._inputs import InputSpec
from mimonets._operating_point import stream_points
from mimonets.loadtest.demo import DemoLoad
from mimonets.serving.app import make_app
from mimonets.serving.networks import superposed
from mimonets.serving.operating_points import ServedPoint
from mimonets.serving.policy import PolicySettings
from mimonets.serving.server import Server, ServerSettings
from mimonets.serving.site import add_site

SPEC = InputSpec(
    kind="image",
    shape=(1, 2, 2),
    mean=(100.0,),
    deviation=(50.0,),
    labels=("zero", "one", "two"),
)
ACCURACIES = {1: 0.99, 2: 0.97, 4: 0.93}
TINY = {  # settings of a network that runs at once
    "depth": 10,
    "width": 1,
    "initial_width": 1,
    "in_channels": 1,
    "num_classes": 10,
    "image_size": 8,
}


class FakeEngine:
    """Answers with the first pixel as the class, takes a set time per pass, remembers its calls."""

    def __init__(self, per_pass=0.0005, spec=SPEC, points=(1, 2, 4)):
        self.operating_points = [point for point in stream_points(4) if point.number in points]
        self.input_spec, self.per_pass = spec, per_pass
        self.calls = []
        self.hold = threading.Event()  # while cleared, every call waits
        self.hold.set()
        self.threads = set()
        self.crash_on = None  # a pixel value that makes a whole call fail
        self.nan_on = None  # a pixel value that spoils its group
        self.by_group = False  # answers depend on the size of the batch

    def __call__(self, inputs, active_streams=None):
        self.threads.add(threading.get_ident())
        self.calls.append((active_streams, inputs.copy()))
        self.hold.wait(30)
        time.sleep(self.per_pass * -(-len(inputs) // active_streams))
        first = inputs.reshape(len(inputs), -1)[:, 0]
        if self.crash_on is not None and self.crash_on in first:
            raise RuntimeError("the engine broke")
        logits = np.zeros((len(inputs), 3), dtype=np.float32)
        logits[np.arange(len(inputs)), first.astype(int) % 3] = 5.0
        if self.by_group:
            logits += len(inputs)
        for start in range(0, len(inputs), active_streams):
            group = slice(start, start + active_streams)
            if self.nan_on is not None and self.nan_on in first[group]:
                logits[group] = np.nan
        return logits


def make_point(inputs_per_pass, time, accuracy=None, **more):
    """Make an operating point without a network."""
    named = {"number": inputs_per_pass, "name": f"{inputs_per_pass} active"}
    return ServedPoint(
        **{**named, **more}, inputs_per_pass=inputs_per_pass, time=time, accuracy=accuracy
    )


def images(*pixels):
    """Make inputs whose first pixel is given."""
    found = np.zeros((len(pixels), 1, 2, 2), dtype=np.float32)
    found[:, 0, 0, 0] = pixels
    return found


def tensor(inputs, **parameters):
    """Make the JSON of a request."""
    request = {
        "inputs": [
            {
                "name": "input",
                "datatype": "FP32",
                "shape": list(inputs.shape),
                "data": inputs.ravel().tolist(),
            }
        ]
    }
    if parameters:
        request["parameters"] = parameters
    return request


def make_server(engine=None, *, tenants=None, slo=5.0, theta=0.6, models=None, **settings):
    engine = engine or FakeEngine()
    loaders = models or {"digits": lambda: superposed("digits", engine, ACCURACIES)}
    return Server(
        loaders,
        ServerSettings(slo=slo, policy=PolicySettings(theta=theta), **settings),
        tenants,
    )


@asynccontextmanager
async def client_of(server, *, wait=True, stop=True):
    """Call a server without a socket."""
    app = make_app(server)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    await server.start(wait=wait)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield client
    finally:
        if stop:
            await server.stop(timeout=5)


@contextmanager
def listening(server, app=None):
    """Run a server on a port of its own; gives its address without http://."""
    import uvicorn

    from mimonets.serving.run import listen, make_config

    config = make_config(app or make_app(server), server.settings, server.settings.max_connections)
    config.timeout_graceful_shutdown = 2
    running = uvicorn.Server(config)
    sockets = listen("127.0.0.1", 0)
    thread = threading.Thread(target=running.run, args=(sockets,), daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not running.started and time.monotonic() < until:
        time.sleep(0.01)
    assert running.started
    port = sockets[0].getsockname()[1]
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.is_draining = True
        running.should_exit = True
        thread.join(10)
        assert not thread.is_alive(), "the server did not shut down"


@contextmanager
def listening_with_page(models, samples):
    """Run a demo server with the page."""
    server = make_server(models=models)
    app = make_app(server)
    facts = {"network": "A fake.", "plain": {"model": "digits-plain", "network": "a fake too"}}
    demo = DemoLoad("", str(samples), facts if len(models) > 1 else None)
    add_site(app, server, demo)
    with listening(server, app) as address:
        demo.url = f"http://{address}/v2/models/{next(iter(models))}"
        try:
            yield address
        finally:
            if demo._process is not None:
                demo._process._transport.kill()
