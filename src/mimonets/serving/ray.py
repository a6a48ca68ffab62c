"""Scale out: whole servers as replicas of Ray Serve, each with its own queue and its own policy.

Ray sends every request to one of two random replicas, the one with fewer requests. A replica is the
same application that ``mimonets serve`` runs: it does its own admission, so Ray must hold nothing
back (``max_ongoing_requests``), and its own batching, so ``@serve.batch`` is not used.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Metric

from mimonets._extras import need
from mimonets.serving.run import check_host, freeze_loaded_objects, is_loopback
from mimonets.serving.server import Server

ONGOING = 1000  # requests of one replica; it refuses by itself what it cannot answer in time
LOAD = 0.8  # fraction of its slow capacity that a replica should be busy with
GRACE = 30.0  # seconds to answer what is queued when a replica goes
HEALTH_PERIOD = 2  # seconds; a replica tells its numbers as often
PATIENCE = 4  # seconds for the numbers of the others; a check of health may take 5
FORGOTTEN = 5 * HEALTH_PERIOD  # seconds after which a silent replica is left out

_server: Server | None = None  # the one of this process, a replica


class Board:
    """An actor that knows what the numbers of every replica were when it last told them."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, list[Metric]]] = {}

    def exchange(self, replica: str, own: list[Metric]) -> dict[str, list[Metric]]:
        """Note the numbers of a replica; returns those of all."""
        now = time.monotonic()
        self._told[replica] = now, own
        self._told = {one: it for one, it in self._told.items() if it[0] > now - FORGOTTEN}
        return {one: numbers for one, (_, numbers) in self._told.items()}


class AllReplicas:
    """What Prometheus reads at any replica: the numbers of all of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> list[Metric]:
        """Tell the others our numbers and get theirs; ours alone while the board is away."""
        import ray
        from ray import serve

        own, here = list(self._registry.collect()), serve.get_replica_context()
        name, replica = f"mimonets-metrics-{here.app_name}", here.replica_id.unique_id
        found: dict[str, list[Metric]]
        try:
            # It goes with the replica that made it, and the next one makes another.
            board: Any = ray.remote(Board).options(
                name=name, namespace="mimonets", get_if_exists=True, num_cpus=0
            )
            found = ray.get(board.remote().exchange.remote(replica, own), timeout=PATIENCE)
        except ray.exceptions.RayError:
            found = {replica: own}
        return merge(found)


def merge(found: Mapping[str, Iterable[Metric]]) -> list[Metric]:
    """Join the numbers of replicas; each gets the name of its replica as a label."""
    families: dict[str, Metric] = {}
    for replica, metrics in found.items():
        for metric in metrics:
            family = Metric(metric.name, metric.documentation, metric.type)
            family = families.setdefault(metric.name, family)
            family.samples += [
                sample._replace(labels={**sample.labels, "replica": replica})
                for sample in metric.samples
            ]
    return list(families.values())


def on_ray(
    make_server: Callable[[], Server],
    *,
    replicas: int | tuple[int, int] = 2,
    cpus: float = 1.0,
    gpus: float = 0.0,
) -> Any:
    """Describe an application for ``ray.serve.run``.

    Args:
        make_server: called in every replica; Ray sends it there, so it must pickle.
        replicas: how many, or the fewest and the most of them.
        cpus: cores that each takes.
        gpus: GPUs that each takes, also a fraction of one; without, Ray shows it none.
    """
    serve = need("ray.serve", "ray[serve]", extra="ray", what="Scaling out")

    def build() -> Any:
        global _server
        from mimonets.serving.app import make_app

        _server = make_server()
        _server.on_load = freeze_loaded_objects
        _server.metrics.source = AllReplicas(_server.metrics.registry)
        return make_app(_server)

    @serve.ingress(build)
    class Replica:
        async def check_health(self) -> None:
            """Raise if queued work does not progress: Ray then replaces the replica."""
            if _server is None:
                return
            if not _server.worker.is_live():
                raise RuntimeError("Queued work does not progress.")
            await asyncio.to_thread(_server.metrics.source.collect)

    options: dict[str, Any] = {
        "name": "mimonets",
        "max_ongoing_requests": ONGOING,
        "ray_actor_options": {"num_cpus": cpus, "num_gpus": gpus},
        "health_check_period_s": HEALTH_PERIOD,
        "health_check_timeout_s": 5,
        "graceful_shutdown_timeout_s": GRACE,
    }
    if isinstance(replicas, int):
        options["num_replicas"] = replicas
    else:
        options["autoscaling_config"] = autoscaling(*replicas)
    return serve.deployment(Replica, **options).bind()


def autoscaling(fewest: int, most: int, *, load: float = LOAD) -> dict[str, Any]:
    r"""Scale up at once and down slowly: until new replicas are there, superposition answers.

    Replicas should be rate / (load x slow capacity). Ray counts requests under way instead of their
    rate; a replica that answers one by one at that load has, by Pollaczek and Khinchine,

    .. math:: L = \rho + \rho^2 / (2 (1 - \rho))

    >>> round(autoscaling(1, 4)["target_ongoing_requests"], 2)
    2.4
    """
    return {
        "min_replicas": fewest,
        "max_replicas": most,
        "target_ongoing_requests": load + load**2 / (2 * (1 - load)),
        "upscale_delay_s": 1,
        "downscale_delay_s": 300,
        "metrics_interval_s": 1,
        "look_back_period_s": 3,
    }


def run_on_ray(
    make_server: Callable[[], Server],
    *,
    replicas: int | tuple[int, int] = 2,
    cpus: float = 1.0,
    gpus: float = 0.0,
    host: str = "127.0.0.1",
    port: int = 8000,
    block: bool = True,
) -> None:
    """Start Ray on this machine, or join the cluster it belongs to, and serve until interrupted."""
    if not is_loopback(host):
        check_host(host, make_server())
    ray = need("ray", "ray[serve]", extra="ray", what="Scaling out")
    serve = need("ray.serve", "ray[serve]", extra="ray", what="Scaling out")

    if not ray.is_initialized():
        os.environ.setdefault("RAY_worker_niceness", "0")  # workers give way to others by default
        ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
    serve.start(http_options={"host": host, "port": port})
    serve.run(on_ray(make_server, replicas=replicas, cpus=cpus, gpus=gpus), route_prefix="/")
    print(f"Serving {replicas} replicas at http://{host}:{port}. Ctrl-C stops.", flush=True)
    if not block:
        return
    try:
        while True:
            time.sleep(1)
    finally:
        serve.shutdown()
        ray.shutdown()
