"""The way of an inference request through HTTP, without the framework's machinery.

At hundreds of requests a second, the framework's routing, validation and response objects cost
a tenth of a network for CIFAR. So requests to ``.../infer`` are answered here, before the framework
sees them. Everything else goes on to the application, which also has the route ``.../infer``, for
the schema and for servers that mount it below another path.
"""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import orjson
from fastapi import FastAPI

from mimonets.serving.bodies import Body, Receive
from mimonets.serving.errors import RequestError
from mimonets.serving.protocol import decode_request, encode_response, largest_body
from mimonets.serving.server import CountedRequest, Server
from mimonets.serving.tenants import Tenant

log = logging.getLogger(__name__)
Headers = list[tuple[bytes, bytes]]
JSON_TYPE = (b"content-type", b"application/json")
BINARY_TYPE = (b"content-type", b"application/octet-stream")
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:/?#@\[\]]+))(?::[0-9]{1,5})?")
ON_LOOP, BINARY_ON_LOOP = 2**14, 2**19  # bytes of a body that are decoded at once: some ms
FAULT = "An error inside the server; its log says more."


class App(FastAPI):
    """An application that answers inference requests before its framework sees them."""

    def __init__(self, server: Server, **settings: Any) -> None:
        super().__init__(**settings)
        self._server = server

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        """Answer one request."""
        model = None
        if scope["type"] == "http":
            refused = self._refuse(scope)
            if refused is not None:
                await _reply(send, refused.status, [JSON_TYPE], write_error(refused))
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

    def _refuse(self, scope: Any) -> RequestError | None:
        """Say what is wrong with a request before anything of it is looked at."""
        hosts, headers = self._server.settings.hosts, scope["headers"]
        if scope.get("http_version") == "0.9":
            return RequestError(400, "HTTP/0.9 is not spoken here: use HTTP/1.1.")
        if sum([name == b"host" for name, _ in headers]) > 1:
            return RequestError(400, "A request has one header Host.")
        if hosts is not None and not is_called_by(hosts, headers):
            return RequestError(421, f"This server answers to {', '.join(hosts)}.")
        changes = scope["method"] not in ("GET", "HEAD", "OPTIONS")
        if changes and self._server.tenants.is_open and is_cross_site(headers):
            return RequestError(403, "Pages of other sites may not send requests to this server.")
        return None


async def _reply(send: Any, status: int, headers: Headers, body: bytes) -> None:
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def is_called_by(hosts: Sequence[str], headers: Headers) -> bool:
    """Tell whether the header Host has one of these names: a page elsewhere must not reach us.

    >>> is_called_by(["localhost"], [(b"host", b"localhost:8000")])
    True
    >>> is_called_by(["localhost"], [(b"host", b"evil.example")])
    False
    """
    host = next((value for name, value in headers if name == b"host"), None)
    if host is None:  # browsers send one
        return True
    found = HOST.fullmatch(host.decode("latin-1").lower())
    return found is not None and (found[1] or found[2]) in hosts


def is_cross_site(headers: Headers) -> bool:
    """Tell whether a browser says that another site's page sends this; keys stop that elsewhere.

    >>> is_cross_site([(b"host", b"localhost:8000"), (b"origin", b"http://localhost:8000")])
    False
    >>> is_cross_site([(b"host", b"localhost:8000"), (b"origin", b"http://localhost:3000")])
    True
    """
    given = dict(headers)
    if given.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none"):
        return True
    origin, host = given.get(b"origin"), given.get(b"host", b"")
    return origin is not None and origin.lower().partition(b"://")[2] != host.lower()


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
        with CountedRequest(server, name, given) as counted:
            tenant = find_tenant(server, given)
            counted.hold(tenant)
            found = server.find(name, number)
            length = given.get(b"inference-header-content-length")
            spec, settings = found.network.input_spec, server.settings
            most = min(settings.max_body, largest_body(spec, settings.max_inputs))
            leaves = partial(client_leaves, receive)
            with Body(server.bodies, tenant.name) as body:
                content = await body.read(receive, given, most)
                found = server.renew(found, number)
                decode = partial(
                    decode_request,
                    content,
                    None if length is None else length.decode("latin-1"),
                    found.network.input_spec,
                    takes_short=found.network.takes_short,
                    max_inputs=settings.max_inputs,
                )
                header, inputs = await server.decoders.run(
                    tenant.name,
                    begun + settings.body_timeout,
                    lambda check: decode(),
                    leaves,
                    at_once=len(content) <= (ON_LOOP if length is None else BINARY_ON_LOOP),
                )
            request = await server.answer(found, inputs, header.options, tenant, leaves, begun)
    except RequestError as problem:
        return problem.status, error_headers(problem), write_error(problem)
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


def error_headers(problem: RequestError) -> Headers:
    """Give the headers of a response that says what is wrong."""
    if problem.status == 401:
        return [JSON_TYPE, (b"www-authenticate", b"Bearer")]
    seconds = 1.0 if problem.status == 503 else problem.retry_after
    if seconds is None:
        return [JSON_TYPE]
    return [JSON_TYPE, (b"retry-after", b"%d" % max(1, math.ceil(seconds)))]


def write_error(problem: object) -> bytes:
    """Write ``{"error": "..."}``."""
    return orjson.dumps({"error": str(problem)})


def find_tenant(server: Server, headers: Mapping[bytes, bytes]) -> Tenant:
    """Find the tenant by ``X-API-Key: KEY`` or ``Authorization: Bearer KEY``."""
    key, authorization = headers.get(b"x-api-key"), headers.get(b"authorization")
    if key is None and authorization is not None:
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() == b"bearer":
            key = token.strip()
    tenant = server.tenants.find(None if key is None else key.decode("latin-1"))
    if tenant is None:
        raise RequestError(401, "A key is needed: send it as `Authorization: Bearer KEY`.")
    return tenant


async def client_leaves(receive: Receive) -> None:
    """Wait until the client disconnects; its whole request was received before."""
    while (await receive())["type"] != "http.disconnect":
        pass
