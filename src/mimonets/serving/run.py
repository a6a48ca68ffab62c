"""Run a server until it is told to stop: signals, draining, reload, the demo's process."""

import asyncio
import contextlib
import gc
import signal
import sys
import warnings
from ipaddress import ip_address
from types import FrameType
from typing import Any

import uvicorn

from mimonets.serving.app import make_app
from mimonets.serving.server import Server
from mimonets.serving.site import add_site

GRPC_GRACE = 2  # seconds for answers that are on their way
GRACE = 30  # seconds for requests that are being answered when the server is told to stop


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


class _Runner(uvicorn.Server):
    """Refuses new requests from the first signal on, and answers those that are queued."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._served = server

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._served.is_draining = True
        if sig == signal.SIGTERM:  # uvicorn would raise it again: nothing would be cleaned up
            self.should_exit = True
        else:
            super().handle_exit(sig, frame)


def check_host(host: str, server: Server) -> None:
    """Refuse an address that others reach, where everybody may ask."""
    if not is_loopback(host) and server.tenants.is_open:
        raise ValueError(
            f"{host} is reachable from elsewhere: give --keys FILE, or bind to 127.0.0.1."
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
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE,
        server_header=False,
        proxy_headers=False,  # nothing here depends on where a request came from
    )
    runner = _Runner(config, server)
    # Once, not in the threads that decode: the state of warnings belongs to the whole process.
    warnings.filterwarnings("ignore", module="PIL")
    server.on_load = freeze_loaded_objects
    server.on_failure = lambda: setattr(runner, "should_exit", True)
    # The loop and the inference thread take turns; by default a turn may last 5 ms.
    sys.setswitchinterval(0.0005)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as loop:  # uvloop where it is
        loop.run(_serve(runner, server, demo, (host, grpc_port)))
    if server.failure is not None:
        raise server.failure


async def _serve(
    runner: _Runner, server: Server, demo: Any, grpc_address: tuple[str, int | None] = ("", None)
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
    calls, (host, grpc_port) = None, grpc_address
    if grpc_port is not None:
        from mimonets.serving.grpc import start_grpc

        calls, _ = await start_grpc(server, host, grpc_port)
    try:
        await runner.serve()
    finally:
        if calls is not None:
            await calls.stop(GRPC_GRACE)  # what was admitted is answered already
        if demo is not None:
            await demo.stop()
