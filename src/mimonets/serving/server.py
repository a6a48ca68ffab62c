"""The models of a server, their versions, and the way of a request through it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mimonets._config import Config, integer, number
from mimonets._messages import did_you_mean, first_line, short
from mimonets.serving.batcher import Batcher, NotFiniteError
from mimonets.serving.bodies import Bodies
from mimonets.serving.decoders import Decoders
from mimonets.serving.errors import RequestError
from mimonets.serving.limits import Budget
from mimonets.serving.metrics import Metrics
from mimonets.serving.model_queue import InferenceRequest, ModelQueue
from mimonets.serving.networks import Network
from mimonets.serving.operating_points import Array, ServedPoint
from mimonets.serving.policy import Policy, PolicySettings
from mimonets.serving.request_options import RequestOptions, make_request
from mimonets.serving.tenants import Tenant, Tenants
from mimonets.serving.worker import Worker, resolve

LONGEST = 3600.0  # seconds


@dataclass(frozen=True, kw_only=True)
class ServerSettings(Config):
    """What the operator of a server may choose."""

    slo: float = number(0.1, above=0, most=LONGEST)  # seconds for a request that names no timeout
    policy: PolicySettings = field(default_factory=PolicySettings)
    max_body: int = integer(64 * 2**20, least=1024)  # bytes of one request
    max_inputs: int = integer(256)  # of one request
    max_receiving: int = integer(128 * 2**20, least=1024)  # bytes of all bodies under way
    max_image_body: int = integer(16 * 2**20, least=1024)  # bytes of one request with image files
    max_queued: int = integer(256 * 2**20, least=1024)  # bytes of all that waits
    max_queued_inputs: int = integer(65_536)  # of all that waits
    max_pixels: int = integer(16_000_000)  # of all image files of one request
    # Seconds that a client may take to send its headers, and its request.
    header_timeout: float = number(10.0, above=0, most=LONGEST)
    body_timeout: float = number(30.0, above=0, most=LONGEST)
    max_connections: int = integer(1000)
    hosts: tuple[str, ...] | None = None  # names by which the server may be called; None: any


@dataclass(frozen=True)
class Version:
    """One loaded network and its queue."""

    network: Network
    queue: ModelQueue

    @property
    def number(self) -> str:
        """Which load of the model it is."""
        return self.queue.version


class Server:
    """All models of one process, one inference thread, one queue for each model."""

    def __init__(
        self,
        loaders: Mapping[str, Callable[[], Network]],
        settings: ServerSettings | None = None,
        tenants: Tenants | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not loaders:
            raise ValueError("There is no model to serve.")
        self.loaders, self.clock = dict(loaders), clock
        self.settings = settings or ServerSettings()
        self.tenants = tenants or Tenants()
        self.batcher = Batcher(
            max_inputs=self.settings.max_queued_inputs,
            max_bytes=self.settings.max_queued,
            quotas=self.tenants.quotas,
            share=self.tenants.share,
        )
        self.worker = Worker(self.batcher, clock)
        self.metrics = Metrics(self.queued, clock)
        self.worker.on_job = self.metrics.job
        self.bodies = Bodies(
            most=self.settings.max_receiving,
            share=self.tenants.share,
            timeout=self.settings.body_timeout,
        )
        self.requests = Budget("requests", "under way", share=self.tenants.share)
        self.limit_requests(self.settings.max_connections)
        self.decoders = Decoders(clock, self.tenants.share)
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="load")
        self.tracing: Any = None  # a serving.tracing.Tracing, where spans are wanted
        self.models: dict[str, Version] = {}
        self.is_draining = False
        self.failure: BaseException | None = None  # why the models could not be loaded at the start
        self.on_failure: Callable[[], None] = lambda: None
        self.on_loaded: Callable[[], Awaitable[None]] | None = None  # before the server is ready
        self.on_ready: Callable[[], None] = lambda: None
        self.on_load: Callable[[], None] = lambda: None  # with every version, before it is used
        self._loads = dict.fromkeys(loaders, 0)
        self._loading = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_ready(self) -> bool:
        """Tell whether all models answer. Overload does not change it."""
        return not self.is_draining and len(self.models) == len(self.loaders)

    def queued(self) -> int:
        """Count the inputs that wait."""
        return self.batcher.inputs.held

    def limit_requests(self, connections: int) -> None:
        """Leave some connections for health and, of several tenants, for others."""
        self.requests.most = connections - connections // 10

    async def start(self, *, wait: bool = True) -> None:
        """Start the inference thread and load all models, one after the other."""
        self.worker.start(asyncio.get_running_loop())
        task = asyncio.create_task(self._load_all())
        self._tasks.add(task)
        task.add_done_callback(self._started)
        if wait:
            await task

    async def stop(self, timeout: float = 30.0) -> None:
        """Answer what is queued, refuse what comes, end the thread."""
        self.is_draining = True
        for task in list(self._tasks):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.worker.stop, timeout)
        self.pool.shutdown(wait=False)
        self.decoders.stop()
        if self.tracing is not None:
            await loop.run_in_executor(None, self.tracing.stop)

    async def load(self, name: str) -> Version:
        """Load a model, or load it again, without a gap.

        The new version is read and measured between jobs while the old one answers; then new
        requests go to the new one, and the old one goes once its queue is empty.
        """
        if name not in self.loaders:
            raise self._unknown(name)
        async with self._loading:
            network, points = await self._open(name)
            self._loads[name] += 1
            queue = ModelQueue(name, Policy(points, self.settings.policy), str(self._loads[name]))
            version = Version(network, queue)
            self.worker.add_queue(queue)
            self.on_load()
            old = self.models.get(name)
            self.models[name] = version
        while old is not None and not self.worker.remove_queue(old.queue):
            await asyncio.sleep(0.005)
        return version

    async def load_for(self, tenant: Tenant, name: str) -> Version:
        """Load a model for a client; raises RequestError: 400, 403, 404."""
        if not tenant.admin:
            raise RequestError(403, 'Loading models needs a key with "admin": true.')
        try:
            return await self.load(name)
        except (ValueError, OSError) as problem:
            raise RequestError(400, f"{name} stays as it is: {problem}") from None

    async def _open(self, name: str) -> tuple[Network, list[ServedPoint]]:
        """Read, run and measure a network; whatever is wrong with it is one sentence."""
        loop = asyncio.get_running_loop()
        try:
            network = await loop.run_in_executor(self.pool, self.loaders[name])
            await loop.run_in_executor(self.pool, network.run_every_graph)
            return network, await self.worker.measure(network)
        except (ValueError, OSError):
            raise
        except Exception as error:  # of an engine, or of a network of the user's own
            raise ValueError(f"{name} does not run: {first_line(error)}.") from error

    def find(self, name: str, version: str | None = None) -> Version:
        """Find a model; raises RequestError if it is unknown or not there yet."""
        if self.is_draining:
            raise RequestError(503, "The server is shutting down.")
        if name not in self.loaders:
            raise self._unknown(name)
        found = self.models.get(name)
        if found is None:
            raise RequestError(503, f"{name} is being loaded.")
        if version is not None and version != found.number:
            raise RequestError(404, f"{name} has version {found.number}, not {short(version)}.")
        return found

    def renew(self, version: Version, number: str | None = None) -> Version:
        """Find a model again if it was loaded anew while its request was under way."""
        if version.queue in self.batcher.queues:
            return version
        return self.find(version.queue.name, number)

    async def answer(
        self,
        version: Version,
        inputs: Array,
        options: RequestOptions,
        tenant: Tenant,
        client_leaves: Callable[[], Coroutine[Any, Any, None]] | None = None,
        begun: float | None = None,
    ) -> InferenceRequest:
        """Queue inputs and wait for all answers, unless ``client_leaves`` ends before.

        The ``queue`` of what is returned says which version answered: the newest, if the model was
        loaded again since ``version`` was found.
        The time to answer counts from ``begun``, when the request began to come; by default now.
        Raises RequestError: 400, 429, 499 for a client that left, 500, 504.
        """
        found = self.renew(version)
        name, new, old = found.queue.name, found.network, version.network
        if (new.input_spec, new.takes_short) != (old.input_spec, old.takes_short):
            raise RequestError(503, f"{name} was loaded again and takes other inputs: ask again.")
        if options.cascade and new.input_spec.answers == "values":
            raise RequestError(
                400, f"cascade: {name} answers with values, which have no confidence: leave it out."
            )
        now, slo = self.clock(), self.settings.slo
        arrival = now if begun is None else begun
        request = make_request(found.queue, inputs, options, tenant, arrival=arrival, slo=slo)
        self.metrics.offered(now)
        if request.deadline <= now:
            raise RequestError(504, "The deadline passed before all of the request was there.")
        request.future = asyncio.get_running_loop().create_future()
        timer = self.worker.submit(request)
        try:
            await self._wait(request, client_leaves)
        finally:
            timer.cancel()
        if not request.is_done:
            self.worker.cancel(request)
            self.metrics.cancelled.labels(name).inc()
            raise RequestError(499, "The client left.")
        self.worker.learn_delivery_time(request)
        if isinstance(request.error, TimeoutError):
            raise RequestError(504, str(request.error))
        if isinstance(request.error, NotFiniteError):
            raise RequestError(400, f"{request.error} The input may be out of range.")
        if request.error is not None:
            raise RequestError(500, str(request.error))
        self.metrics.answered(request)
        if self.tracing is not None:
            self.tracing.answered(request, arrival, now)
        return request

    async def _wait(
        self,
        request: InferenceRequest,
        client_leaves: Callable[[], Coroutine[Any, Any, None]] | None,
    ) -> None:
        """Wait until a request is done, or the client left."""
        leaving = None
        if client_leaves is not None:
            leaving = asyncio.create_task(client_leaves())
            leaving.add_done_callback(lambda task: _stop_waiting(request, task))
        try:
            await request.future
        except asyncio.CancelledError:
            self.worker.cancel(request)
            raise
        finally:
            if leaving is not None:
                leaving.cancel()

    def _started(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        self.failure = task.exception()
        if self.failure is not None:
            self.on_failure()
        else:
            self.on_ready()

    async def _load_all(self) -> None:
        for name in self.loaders:
            await self.load(name)
        if self.on_loaded is not None:
            await self.on_loaded()

    def _unknown(self, name: str) -> RequestError:
        hint = did_you_mean(name, self.loaders)
        known = ", ".join(self.loaders)
        return RequestError(404, f"There is no model {short(name)}{hint}: {known}.")


def _stop_waiting(request: InferenceRequest, leaving: asyncio.Task[None]) -> None:
    """Wake up who waits for a request: its client left, or its connection has an error."""
    if not leaving.cancelled():
        leaving.exception()  # asyncio would log one that nobody looked at
        resolve([request])


class CountedRequest:
    """Counts what becomes of a request, whoever refuses it: ``with CountedRequest(...): ...``.

    Where the server traces, it is a span as well; its headers may say to which trace it belongs.
    """

    def __init__(
        self, server: Server, name: str, headers: Mapping[bytes, bytes] | None = None
    ) -> None:
        self._server, self.name = server, name
        self._traced = self._span = None
        self._tenant: str | None = None
        if server.tracing is not None:
            self._traced = server.tracing.request(headers or {})

    def hold(self, tenant: Tenant) -> None:
        """Take one of the connections on which a tenant may have a request; 429 if none is left."""
        self._server.requests.check(tenant.name, 1)
        self._server.requests.add(tenant.name, 1)
        self._tenant = tenant.name

    def __enter__(self) -> "CountedRequest":
        if self._traced is not None:
            self._span = self._traced.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._tenant is not None:
            self._server.requests.add(self._tenant, -1)
        status = 200 if error is None else 500
        if isinstance(error, RequestError):
            status = error.status
        elif isinstance(error, asyncio.CancelledError):
            status = 499
        name = self.name if self.name in self._server.loaders else ""  # clients make no labels
        self._server.metrics.ended(name, status)
        if self._traced is not None:
            self._server.tracing.end(self._span, name, status)
            self._traced.__exit__(None, None, None)
