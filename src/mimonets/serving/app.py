"""HTTP: the Open Inference Protocol, image files, health, metrics, and the page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version as installed
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from mimonets.serving.errors import RequestError
from mimonets.serving.infer import (
    FAULT,
    App,
    Headers,
    client_leaves,
    error_headers,
    find_tenant,
    headers_by_name,
    write_error,
)
from mimonets.serving.infer import infer as answer_inference
from mimonets.serving.protocol import EXTENSIONS, describe
from mimonets.serving.server import Server, Version
from mimonets.serving.tenants import Tenant

TENSOR_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["inputs"],
                    "properties": {
                        "id": {"type": "string"},
                        "inputs": {"type": "array", "items": {"type": "object"}},
                        "outputs": {"type": "array", "items": {"type": "object"}},
                        "parameters": {"type": "object"},
                    },
                }
            }
        },
    },
    "responses": {
        str(code): {"description": text, "content": {"application/json": {}}}
        for code, text in {
            400: "malformed",
            401: "no or unknown key",
            404: "no such model",
            408: "the body took too long",
            413: "too large",
            415: "encoding not taken",
            421: "called by another name",
            429: "overloaded; see Retry-After",
            500: "the network or the server failed",
            503: "starting or shutting down",
            504: "not in time",
        }.items()
    },
}


def make_app(server: Server, *, wait: bool = True) -> FastAPI:
    """Make the ASGI application of a server. ``wait``: load all models before the first answer."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await server.start(wait=wait)
        yield
        await server.stop()

    app = App(
        server,
        title="mimonets",
        version=installed("mimonets"),
        lifespan=lifespan,
        openapi_url=None,  # the route below asks for a key
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.server = server
    _add_errors(app)
    _add_health(app, server)
    _add_models(app, server)
    from mimonets.serving.classify import add_classify

    add_classify(app, server)
    return app


def json_response(
    content: Any, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Answer JSON."""
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, headers, media_type="application/json")


def authorise(request: Request, server: Server) -> Tenant:
    """Find the tenant of a request by its key."""
    return find_tenant(server, headers_by_name(request.headers.raw))


def _response(status: int, headers: Headers, body: bytes) -> Response:
    return Response(body, status, {name.decode(): value.decode() for name, value in headers})


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestError)
    async def refused(request: Request, problem: RequestError) -> Response:
        return _response(problem.status, error_headers(problem), write_error(problem))

    @app.exception_handler(HTTPException)
    async def http(request: Request, problem: HTTPException) -> Response:
        headers = dict(problem.headers or {})
        return json_response({"error": str(problem.detail)}, problem.status_code, headers)

    @app.exception_handler(Exception)
    async def fault(request: Request, problem: Exception) -> Response:
        return json_response({"error": FAULT}, 500)


def _add_health(app: FastAPI, server: Server) -> None:
    @app.get("/v2")
    async def metadata() -> Response:
        return json_response(
            {
                "name": "mimonets",
                "version": installed("mimonets"),
                "extensions": EXTENSIONS,
            }
        )

    @app.get("/v2/health/live")
    async def live() -> Response:
        if server.worker.is_live():
            return json_response({"live": True})
        return json_response({"error": "Queued work does not progress."}, 503)

    @app.get("/v2/health/ready")
    async def ready() -> Response:
        if server.is_ready and server.worker.is_live():
            return json_response({"ready": True})
        raise RequestError(503, "The server is starting or shutting down.")

    @app.get("/openapi.json", include_in_schema=False)
    async def schema(request: Request) -> Response:
        authorise(request, server)
        return json_response(app.openapi())

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        tenant = authorise(request, server)
        text = await server.decoders.run(
            tenant.name,
            server.clock() + server.settings.body_timeout,
            lambda check: server.metrics.text(),
            partial(client_leaves, request.receive),
        )
        return Response(text, media_type="text/plain; version=0.0.4")


def _add_models(app: FastAPI, server: Server) -> None:
    def find(request: Request, name: str, number: str | None = None) -> Version:
        authorise(request, server)
        return server.find(name, number)

    @app.get("/v2/models/{name}")
    @app.get("/v2/models/{name}/versions/{number}")
    async def model(request: Request, name: str, number: str | None = None) -> Response:
        found = find(request, name, number)
        return json_response(describe(found.queue, found.network, server.settings.slo))

    @app.get("/v2/models/{name}/ready")
    @app.get("/v2/models/{name}/versions/{number}/ready")
    async def model_ready(request: Request, name: str, number: str | None = None) -> Response:
        find(request, name, number)
        return json_response({"name": name, "ready": True})

    @app.post("/v2/models/{name}/infer", openapi_extra=TENSOR_BODY)
    @app.post("/v2/models/{name}/versions/{number}/infer", openapi_extra=TENSOR_BODY)
    async def infer(request: Request, name: str, number: str | None = None) -> Response:
        # App answers first; this is for the schema, and where the app is mounted elsewhere.
        return _response(
            *await answer_inference(server, request.headers.raw, request.receive, name, number)
        )

    @app.post("/v2/repository/index")
    async def index(request: Request) -> Response:
        authorise(request, server)
        return json_response(
            [
                {"name": name, "version": version.number, "state": "READY"}
                for name, version in server.models.items()
            ]
        )

    @app.post("/v2/repository/models/{name}/load")
    async def load(request: Request, name: str) -> Response:
        version = await server.load_for(authorise(request, server), name)
        return json_response({"name": name, "version": version.number})
