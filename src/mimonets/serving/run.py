"""Run a server until it is told to stop: signals, draining, reload, the demo's process."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
import warnings
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from ipaddress import ip_address
from types import FrameType
from typing import Any

import uvicorn

from mimonets.serving.app import make_app
from mimonets.serving.connections import BACKLOG, allowed_connections, connection_class
from mimonets.serving.server import Server, ServerSettings
from mimonets.serving.site import add_site

GRPC_GRACE = 1.0  # seconds for answers that are on their way
GRACE = 30  # seconds for requests that are being answered when the server is told to stop
BODY_GRACE = 1.0  # seconds for requests that are still being sent then
LAST_WORDS = 1.0  # seconds for clients to read the last answers


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def freeze_loaded_objects() -> None:
    """Let the garbage collector skip all that was loaded: going through it stops every thread.

    With PyTorch in memory one pass takes over 100 ms, and it comes again and again under load.
    """
    if gc.get_freeze_count() == 0:  # later, a whole pass would make requests late
        gc.collect()
    gc.freeze()


def import_ahead() -> None:
    """Import what the first request of a kind would: that takes the loop some tens of ms."""
    import_module("anyio._backends._asyncio")
    with contextlib.suppress(ImportError):  # Pillow is optional
        import_module("PIL.Image").preinit()


class _Runner(uvicorn.Server):
    """Refuses new requests from the first signal on, and answers those that are queued."""

    def __init__(
        self, config: uvicorn.Config, server: Server, sockets: list[socket.socket]
    ) -> None:
        super().__init__(config)
        self._served, self._sockets = server, sockets
        self._loop: asyncio.AbstractEventLoop | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self._served.is_draining and self._loop is not None:
            self._loop.call_soon_threadsafe(self._start_to_end)
        self._served.is_draining = True
        if sig == signal.SIGTERM:  # uvicorn would raise it again: nothing would be cleaned up
            self.should_exit = True
        else:
            super().handle_exit(sig, frame)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets or self._sockets)

    def _start_to_end(self) -> None:
        self._served.bodies.end(BODY_GRACE)
        self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        """Close what is left open once everything admitted is answered: clients may not read."""
        await asyncio.sleep(BODY_GRACE)
        while self._served.worker.is_busy:
            await asyncio.sleep(0.05)
        await asyncio.sleep(LAST_WORDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def check_host(host: str, server: Server) -> None:
    """Refuse an address that others reach, where everybody may ask."""
    if not is_loopback(host) and server.tenants.is_open:
        raise ValueError(
            f"{host} is reachable from elsewhere: give --keys FILE, or bind to 127.0.0.1."
        )


def listen(host: str, port: int) -> list[socket.socket]:
    """Open the server's port at every address of a host."""
    opened: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            opened.append(socket.socket(family, kind, protocol))
            opened[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                opened[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            opened[-1].bind(address)
    except OSError as error:
        for one in opened:
            one.close()
        raise ValueError(
            f"Port {port} of {host} cannot be opened ({error.strerror}): choose another one with "
            f"--port, or another address with --host."
        ) from None
    return opened


def make_config(
    app: Any, settings: ServerSettings, most: int, backlog: int = BACKLOG
) -> uvicorn.Config:
    """Say how HTTP is served, on so many connections."""
    return uvicorn.Config(
        app,
        http=connection_class(settings.header_timeout, most),
        backlog=backlog,
        ws="none",
        log_level="error",  # at a line for each malformed request, clients could fill a disk
        access_log=False,
        timeout_graceful_shutdown=GRACE,
        server_header=False,
        proxy_headers=False,  # nothing here depends on where a request came from
    )


def run_server(
    server: Server,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    demo: Any = None,
    grpc_port: int | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; SIGHUP loads all models again. Raises what loading raised."""
    check_host(host, server)
    app = make_app(server, wait=False)
    add_site(app, server, demo)
    most, backlog = allowed_connections(server.settings.max_connections)
    open_calls = None
    if grpc_port is not None:
        from mimonets.serving.grpc import start_grpc

        open_calls = partial(start_grpc, server, host, grpc_port, most // 3)
        most -= most // 3
    server.limit_requests(most)
    config = make_config(app, server.settings, most, backlog)
    runner = _Runner(config, server, listen(host, port))
    import_ahead()
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    # Once, not in the threads that decode: the state of warnings belongs to the whole process.
    warnings.filterwarnings("ignore", module="PIL")
    server.on_load = freeze_loaded_objects
    server.on_failure = lambda: setattr(runner, "should_exit", True)
    # The loop and the inference thread take turns; by default a turn may last 5 ms.
    sys.setswitchinterval(0.0005)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as loop:  # uvloop where it is
        loop.run(_serve(runner, server, demo, open_calls))
    if server.failure is not None:
        raise server.failure


async def _serve(
    runner: _Runner,
    server: Server,
    demo: Any,
    open_calls: Callable[[], Awaitable[Any]] | None = None,
) -> None:
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()

    async def reload() -> None:
        for name in server.loaders:
            try:
                version = await server.load(name)
                print(f"{name}: version {version.number}", flush=True)
            except (ValueError, OSError) as error:
                print(f"{name} stays as it is: {error}", flush=True)

    def start_reload() -> None:
        task = asyncio.create_task(reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    with contextlib.suppress(NotImplementedError, AttributeError):  # Windows has no SIGHUP
        loop.add_signal_handler(signal.SIGHUP, start_reload)
    calls: list[Any] = []
    if open_calls is not None:

        async def start_calls() -> None:
            calls.append((await open_calls())[0])

        server.on_loaded = start_calls
    try:
        await runner.serve()
    finally:
        for one in calls:
            await one.stop(GRPC_GRACE)  # what was admitted is answered already
        if demo is not None:
            await demo.stop()
