"""The way of an inference request through HTTP, without the framework's machinery.

At hundreds of requests a second the framework's routing, validation and response objects would take
as long as a tenth of a network for CIFAR. So requests to ``.../infer`` are answered here, right
behind the server's socket; everything else goes on to the application, which also knows the route,
for the schema and for servers that mount it below another path.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import orjson
from fastapi import FastAPI, Request

from mimonets.serving.batcher import RefusedError
from mimonets.serving.protocol import decode_request, encode_response
from mimonets.serving.request_options import RequestError
from mimonets.serving.server import Server, ServerSettings
from mimonets.serving.tenants import Tenant

log = logging.getLogger(__name__)
Receive = Callable[[], Awaitable[Any]]
Headers = list[tuple[bytes, bytes]]
JSON_TYPE = (b"content-type", b"application/json")
BINARY_TYPE = (b"content-type", b"application/octet-stream")
FAULT = "An error inside the server; its log says more."
MOST_HOSTS = 100  # names with different ports


class App(FastAPI):
    """An application that answers inference requests before its framework sees them."""

    def __init__(self, server: Server, **settings: Any) -> None:
        super().__init__(**settings)
        self._server = server
        self._names_us = HostNames(server.settings.hosts)

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        """Answer one request."""
        model = None
        if scope["type"] == "http":
            if not self._names_us(scope):
                body = write_error(f"This server answers to {self._names_us}.")
                await _reply(send, 421, [JSON_TYPE], body)
                return
            if scope["method"] == "POST" and not scope.get("root_path"):
                model = model_in_path(scope["path"])
        if model is None:
            await super().__call__(scope, receive, send)
            return
        try:
            found = await infer(self._server, scope["headers"], receive, *model)
        except Exception:
            log.exception("an inference request failed")
            found = 500, [JSON_TYPE], write_error(FAULT)
        await _reply(send, *found)


class HostNames:
    """By which names the server may be called: a web page elsewhere must not reach it."""

    def __init__(self, hosts: tuple[str, ...] | None) -> None:
        self._hosts = hosts
        self._known: set[bytes] = set()  # values of the header Host that were found to be right

    def __call__(self, scope: Any) -> bool:
        """Tell whether a request names this server."""
        if self._hosts is None:
            return True
        host = next((value for name, value in scope["headers"] if name == b"host"), None)
        if host in self._known:
            return True
        is_right = Request(scope).url.hostname in self._hosts
        if is_right and host is not None and len(self._known) < MOST_HOSTS:
            self._known.add(host)
        return is_right

    def __str__(self) -> str:
        return ", ".join(self._hosts or ())


async def _reply(send: Any, status: int, headers: Headers, body: bytes) -> None:
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def model_in_path(path: str) -> tuple[str, str | None] | None:
    """Find name and version in the path of an inference request; None for any other path.

    >>> model_in_path("/v2/models/digits/infer")
    ('digits', None)
    >>> model_in_path("/v2/models/digits/versions/3/infer")
    ('digits', '3')
    >>> model_in_path("/v2/models/digits")
    """
    if not path.startswith("/v2/models/") or not path.endswith("/infer"):
        return None
    parts = path[len("/v2/models/") :].split("/")
    if len(parts) == 2 and parts[0]:
        return parts[0], None
    if len(parts) == 4 and parts[0] and parts[1] == "versions" and parts[2]:
        return parts[0], parts[2]
    return None


async def infer(
    server: Server, raw_headers: Headers, receive: Receive, name: str, number: str | None
) -> tuple[int, Headers, bytes]:
    """Answer one inference request: status, headers and body."""
    begun, given = server.clock(), headers_by_name(raw_headers)
    try:
        with server.count(name):
            tenant = find_tenant(server, given.get(b"x-api-key"), given.get(b"authorization"))
            found = server.find(name, number)
            body = await read_body(receive, given, server.settings)
            found = server.renew(found, number)
            length = given.get(b"inference-header-content-length")
            header, inputs = decode_request(
                body,
                None if length is None else length.decode("latin-1"),
                found.network.input_spec,
                takes_short=found.takes_short,
                max_inputs=server.settings.max_inputs,
                known=found.headers,
            )
            leaves = partial(client_leaves, receive)
            request = await server.answer(found, inputs, header.options, tenant, leaves, begun)
    except (RequestError, RefusedError) as problem:
        status, more = status_and_headers(problem)
        return status, [JSON_TYPE, *more], write_error(problem)
    content, cut = encode_response(request, header, found.network.input_spec)
    if cut is None:
        return 200, [JSON_TYPE], content
    return 200, [BINARY_TYPE, (b"inference-header-content-length", b"%d" % cut)], content


def headers_by_name(headers: Headers) -> dict[bytes, bytes]:
    """Make headers known by their names; of several with one name, the first counts.

    >>> headers_by_name([(b"host", b"here"), (b"host", b"there")])
    {b'host': b'here'}
    """
    return dict(reversed(headers))


def status_and_headers(problem: RequestError | RefusedError) -> tuple[int, Headers]:
    """Give the status of a refusal, and the headers that go with it."""
    if isinstance(problem, RefusedError):
        if problem.retry_after is None:
            return 429, []
        return 429, [(b"retry-after", b"%d" % max(1, math.ceil(problem.retry_after)))]
    if problem.status == 503:
        return 503, [(b"retry-after", b"1")]
    if problem.status == 401:
        return 401, [(b"www-authenticate", b"Bearer")]
    return problem.status, []


def write_error(problem: object) -> bytes:
    """Write ``{"error": "..."}``."""
    return orjson.dumps({"error": str(problem)})


def find_tenant(server: Server, key: bytes | None, authorization: bytes | None) -> Tenant:
    """Find the tenant by ``X-API-Key: KEY`` or ``Authorization: Bearer KEY``."""
    if key is None and authorization is not None:
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() == b"bearer":
            key = token.strip()
    tenant = server.tenants.find(None if key is None else key.decode("latin-1"))
    if tenant is None:
        raise RequestError(401, "A key is needed: send it as `Authorization: Bearer KEY`.")
    return tenant


async def read_body(
    receive: Receive, headers: Mapping[bytes, bytes], settings: ServerSettings
) -> bytes:
    """Read a body, counted while it streams; compressed ones are not taken."""
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise RequestError(415, "Compressed requests are not taken: send the body as it is.")
    announced = headers.get(b"content-length", b"0")
    if announced.isdigit() and (len(announced) > 15 or int(announced) > settings.max_body):
        raise _too_large(settings)
    try:
        async with asyncio.timeout(settings.body_timeout):
            return await _read_parts(receive, settings)
    except TimeoutError:
        raise RequestError(408, f"The body took over {settings.body_timeout:g} s.") from None


async def _read_parts(receive: Receive, settings: ServerSettings) -> bytes:
    parts, size, is_more = [], 0, True
    while is_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError(499, "The client left.")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > settings.max_body:
            raise _too_large(settings)
        is_more = message.get("more_body", False)
    return b"".join(parts)


async def client_leaves(receive: Receive) -> None:
    """Wait until the client disconnects; its whole request was received before."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(settings: ServerSettings) -> RequestError:
    return RequestError(413, f"A request may have at most {settings.max_body} bytes.")
