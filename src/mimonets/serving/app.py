"""HTTP: the Open Inference Protocol, image files, health, metrics, and the page."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version as installed
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from mimonets.serving.batcher import RefusedError
from mimonets.serving.protocol import describe, read_question, write_answer
from mimonets.serving.server import Server, Version, retry_after
from mimonets.serving.tenants import Tenant
from mimonets.serving.wishes import RequestError

HEADER = "inference-header-content-length"
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
            413: "too large",
            415: "encoding not taken",
            429: "overloaded; see Retry-After",
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

    app = FastAPI(
        title="mimonets",
        version=installed("mimonets"),
        lifespan=lifespan,
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.server = server
    _add_errors(app)
    _add_guard(app, server)
    _add_health(app, server)
    _add_models(app, server)
    from mimonets.serving.classify import add_classify

    add_classify(app, server)
    return app


def error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """Answer ``{"error": "..."}``."""
    return answer({"error": message}, status, headers)


def answer(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Answer JSON."""
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, headers, media_type="application/json")


def authorise(request: Request, server: Server) -> Tenant:
    """Find the tenant by ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``."""
    key = request.headers.get("x-api-key")
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if key is None and scheme.lower() == "bearer":
        key = token.strip()
    tenant = server.tenants.find(key)
    if tenant is None:
        raise RequestError(401, "A key is needed: send it as `Authorization: Bearer KEY`.")
    return tenant


async def read_body(request: Request, server: Server) -> bytes:
    """Read a body, counted while it streams; compressed ones are not taken."""
    settings = server.settings
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RequestError(415, "Compressed requests are not taken: send the body as it is.")
    announced = request.headers.get("content-length", "0")
    too_large = RequestError(413, f"A request may have at most {settings.max_body} bytes.")
    if announced.isdigit() and int(announced) > settings.max_body:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(settings.body_timeout):
            async for part in request.stream():
                size += len(part)
                if size > settings.max_body:
                    raise too_large
                parts.append(part)
    except TimeoutError:
        raise RequestError(408, f"The body took over {settings.body_timeout:g} s.") from None
    return b"".join(parts)


def leaves(request: Request) -> Callable[[], Awaitable[None]]:
    """Make what returns when the client disconnects."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return gone


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestError)
    async def refused(request: Request, problem: RequestError) -> Response:
        headers = {"Retry-After": "1"} if problem.status == 503 else {}
        if problem.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return error(problem.status, str(problem), headers)

    @app.exception_handler(RefusedError)
    async def overloaded(request: Request, problem: RefusedError) -> Response:
        return error(429, str(problem), {"Retry-After": retry_after(problem)})

    @app.exception_handler(HTTPException)
    async def http(request: Request, problem: HTTPException) -> Response:
        return error(problem.status_code, str(problem.detail), dict(problem.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, problem: RequestValidationError) -> Response:
        return error(400, "; ".join(str(one.get("msg")) for one in problem.errors()))

    @app.exception_handler(Exception)
    async def fault(request: Request, problem: Exception) -> Response:
        return error(500, "An error inside the server; its log says more.")


def _add_guard(app: FastAPI, server: Server) -> None:
    """Answer only to the names of this server: a web page elsewhere must not reach it."""
    if server.settings.hosts is not None:
        app.add_middleware(_Guard, hosts=server.settings.hosts)


class _Guard:
    def __init__(self, app: Any, hosts: tuple[str, ...]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and Request(scope).url.hostname not in self._hosts:
            refusal = error(421, f"This server answers to {', '.join(self._hosts)}.")
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _add_health(app: FastAPI, server: Server) -> None:
    @app.get("/v2")
    async def metadata() -> Response:
        return answer(
            {
                "name": "mimonets",
                "version": installed("mimonets"),
                "extensions": ["binary_tensor_data", "classification", "model_repository"],
            }
        )

    @app.get("/v2/health/live")
    async def live() -> Response:
        if server.worker.is_live():
            return answer({"live": True})
        return error(503, "Queued work does not progress.")

    @app.get("/v2/health/ready")
    async def ready() -> Response:
        if server.is_ready and server.worker.is_live():
            return answer({"ready": True})
        return error(503, "The server is starting or shutting down.", {"Retry-After": "1"})

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        authorise(request, server)
        return Response(server.metrics.text(), media_type="text/plain; version=0.0.4")


def _add_models(app: FastAPI, server: Server) -> None:
    def find(request: Request, name: str, number: str | None = None) -> Version:
        authorise(request, server)
        return server.find(name, number)

    @app.get("/v2/models/{name}")
    @app.get("/v2/models/{name}/versions/{number}")
    async def model(request: Request, name: str, number: str | None = None) -> Response:
        found = find(request, name, number)
        network, policy = found.network, found.lane.policy
        described = describe(name, [found.number], network.input_spec, short=_is_short(found))
        described["parameters"] = {
            "modes": [
                {
                    "active_streams": mode.active_streams,
                    "name": mode.name,
                    "accuracy": mode.accuracy,
                    "pass_ms": round(1000 * mode.seconds_of_a_group, 3),
                }
                for mode in policy.modes
            ],
            "slo_ms": 1000 * server.settings.slo,
        }
        if network.input_spec.labels is not None:
            described["parameters"]["labels"] = list(network.input_spec.labels)
        return answer(described)

    @app.get("/v2/models/{name}/ready")
    @app.get("/v2/models/{name}/versions/{number}/ready")
    async def model_ready(request: Request, name: str, number: str | None = None) -> Response:
        find(request, name, number)
        return answer({"name": name, "ready": True})

    @app.post("/v2/models/{name}/infer", openapi_extra=TENSOR_BODY)
    @app.post("/v2/models/{name}/versions/{number}/infer", openapi_extra=TENSOR_BODY)
    async def infer(request: Request, name: str, number: str | None = None) -> Response:
        tenant = authorise(request, server)
        found = server.find(name, number)
        body = await read_body(request, server)
        question = read_question(
            body,
            request.headers.get(HEADER),
            found.network.input_spec,
            takes_short=_is_short(found),
            max_inputs=server.settings.max_inputs,
        )
        ticket = await server.answer(found, question.inputs, question.wish, tenant, leaves(request))
        content, length = write_answer(
            ticket, question, found.lane.policy, found.network.input_spec, name, found.number
        )
        if length is None:
            return Response(content, media_type="application/json")
        return Response(
            content,
            media_type="application/octet-stream",
            headers={"Inference-Header-Content-Length": str(length)},
        )

    @app.post("/v2/repository/index")
    async def index(request: Request) -> Response:
        authorise(request, server)
        return answer(
            [
                {"name": name, "version": version.number, "state": "READY"}
                for name, version in server.models.items()
            ]
        )

    @app.post("/v2/repository/models/{name}/load")
    async def load(request: Request, name: str) -> Response:
        tenant = authorise(request, server)
        if not tenant.admin:
            raise RequestError(403, 'Loading models needs a key with "admin": true.')
        try:
            version = await server.load(name)
        except (ValueError, OSError) as problem:
            raise RequestError(400, f"{name} stays as it is: {problem}") from None
        return answer({"name": name, "version": version.number})


def _is_short(version: Version) -> bool:
    return version.network.input_spec.kind == "tokens" and version.network.takes_short
