"""The page: static files under a strict policy, live numbers, and the demo's load."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from starlette.responses import StreamingResponse

from mimonets._messages import short
from mimonets.serving.app import authorise, json_response
from mimonets.serving.bodies import Body
from mimonets.serving.errors import RequestError
from mimonets.serving.protocol import read_json
from mimonets.serving.server import Server
from mimonets.serving.tenants import Tenant

FOLDER = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
INTERVAL = 0.5  # seconds between two events
LONGEST = 1000  # bytes that say the demo's load


def add_site(app: FastAPI, server: Server, demo: Any = None) -> None:
    """Add the page and its live numbers; with a `mimonets.loadtest.demo.DemoLoad` also its load."""
    # Made once: reading a file would hold up all other requests.
    files = {
        path.name: Response(
            path.read_bytes(), media_type=f"{KINDS[path.suffix]}; charset=utf-8", headers=SAFE
        )
        for path in FOLDER.iterdir()
        if path.suffix in KINDS
    }

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return files["index.html"]

    @app.get("/page/{name}", include_in_schema=False)
    async def page(name: str) -> Response:
        if name not in files:
            raise RequestError(404, "There is no such file.")
        return files[name]

    @app.get("/v1/events")
    async def events(request: Request) -> Response:
        tenant = authorise(request, server)
        server.requests.check(tenant.name, 1)
        return StreamingResponse(
            _events(request, server, tenant, demo), media_type="text/event-stream", headers=SAFE
        )

    if demo is None:
        return

    @app.get("/v1/demo")
    async def about() -> Response:
        costs = [point.cost for point in server.find(demo.model).queue.policy.points]
        if min(costs) > 0:
            demo.scale(slow=1 / max(costs), fast=1 / min(costs))
        return json_response(demo.about())

    @app.post("/v1/demo/load", include_in_schema=False)
    async def load(request: Request) -> Response:
        tenant = authorise(request, server)
        with Body(server.bodies, tenant.name) as body:
            content = await body.read(request.receive, dict(request.headers.raw), LONGEST)
        rate = read_json(content, most=10).get("rate")
        if isinstance(rate, bool) or not isinstance(rate, int | float):
            raise RequestError(400, "rate must be a number.")
        if not 0 <= rate <= demo.max_rate:
            raise RequestError(400, f"rate={short(rate)} must lie between 0 and {demo.max_rate:g}.")
        await demo.set_rate(float(rate))
        return json_response({"rate": rate})


async def _events(
    request: Request, server: Server, tenant: Tenant, demo: Any
) -> AsyncIterator[bytes]:
    """Give the numbers of the last seconds, again and again."""
    server.requests.add(tenant.name, 1)
    try:
        with nullcontext() if demo is None else demo.watched():
            while not server.is_draining and not await request.is_disconnected():
                state = {"queued": server.queued(), "ready": server.is_ready}
                state |= server.metrics.window() | ({} if demo is None else demo.state())
                yield b"data: " + orjson.dumps(state) + b"\n\n"
                await asyncio.sleep(INTERVAL)
    finally:
        server.requests.add(tenant.name, -1)
