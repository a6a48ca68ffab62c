"""gRPC: the Open Inference Protocol v2 beside HTTP, in the same event loop, by the same rules.

Messages are the classes that were generated for NVIDIA's client (``tritonclient``); the service
needs none of its other parts.
"""

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version as installed
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as messages

from mimonets._messages import short
from mimonets.serving.bodies import Body
from mimonets.serving.errors import RequestError
from mimonets.serving.infer import BINARY_ON_LOOP, FAULT, error_headers, find_tenant
from mimonets.serving.limits import Budget, Turns
from mimonets.serving.operating_points import Array
from mimonets.serving.protocol import (
    DATATYPES,
    EXTENSIONS,
    LONGEST_JSON,
    RequestHeader,
    describe,
    largest_body,
    make_outputs,
    read_header,
    read_inputs,
    response_parameters,
)
from mimonets.serving.server import CountedRequest, Server, Version
from mimonets.serving.tenants import Tenant

log = logging.getLogger(__name__)
Context = Any  # a grpc.aio.ServicerContext
NAME = "inference.GRPCInferenceService"
MOST_CALLS = 1024  # with a key that are under way at once, and as many without; more are refused
CONNECTIONS = 100  # where nobody says how many
MOST_READ = 256  # messages that are read at once
PATIENCE = 1.0  # seconds that a message may take to come while others wait
STREAMS = 100  # calls of one connection; a client keeps others back
IDLE = 300  # seconds that a connection may have no call
AGE, LAST_CALLS = 600, 120  # seconds that a connection lives, and that its last calls get then
PER_NUMBER = 10  # bytes of a typed number, at most
LARGE, MOST_PARTS, RAW = 64 * 2**10, 100, 7  # bytes; fields of a larger message, raw tensors' tag
LONGEST = 3600.0  # seconds: a deadline that is later is none
# Which field of InferTensorContents holds the numbers of a type; FP16 has none.
TYPED = {
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
}
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


async def start_grpc(
    server: Server, host: str, port: int, connections: int = CONNECTIONS
) -> tuple[Any, int]:
    """Listen for gRPC on the running loop; returns what to stop, and the port.

    The models are loaded: the longest message follows from what they take.
    """
    service = Service(server)
    settings = server.settings
    listening = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", service.longest),
            ("grpc.max_allowed_incoming_connections", connections),
            ("grpc.max_concurrent_streams", STREAMS),
            ("grpc.server_handshake_timeout_ms", int(1000 * settings.header_timeout)),
            ("grpc.max_connection_idle_ms", 1000 * IDLE),
            # Nothing else ends a call whose client does not read its answer.
            ("grpc.max_connection_age_ms", 1000 * AGE),
            ("grpc.max_connection_age_grace_ms", 1000 * LAST_CALLS),
            ("grpc.http2.bdp_probe", 0),  # a message that is not read yet stays with its client
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # two servers on one port would share its clients
            ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small body stays small
        ],
    )
    listening.add_generic_rpc_handlers((_handlers(service),))
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = listening.add_insecure_port(address)
    except RuntimeError:
        bound = 0
    if not bound:
        raise OSError(f"gRPC cannot listen at {address}: choose another --grpc-port.")
    await listening.start()
    return listening, bound


def _handlers(service: "Service") -> Any:
    """Make the handlers of all calls that are answered; gRPC refuses the others by itself."""
    calls: dict[str, Callable[[Context], Awaitable[Any]]] = {
        "ServerLive": service.live,
        "ServerReady": service.ready,
        "ServerMetadata": service.metadata,
        "ModelReady": service.model_ready,
        "ModelMetadata": service.model_metadata,
        "RepositoryIndex": service.index,
        "RepositoryModelLoad": service.load,
        "ModelInfer": service.infer,
    }
    # As streams of one message, which look the same to a client: a call reads it when its key is
    # known and there is room for it. Until then gRPC takes 64 kB of it, whatever its length.
    found = {
        name: grpc.stream_unary_rpc_method_handler(
            _answered(call),
            request_deserializer=None,
            response_serializer=getattr(messages, f"{name}Response").SerializeToString,
        )
        for name, call in calls.items()
    }
    return grpc.method_handlers_generic_handler(NAME, found)


def _answered(
    call: Callable[[Context], Awaitable[Any]],
) -> Callable[[Any, Context], Awaitable[Any]]:
    """Turn what a call raises into a status; nothing is logged that a client did wrong."""

    async def answer(_: Any, context: Context) -> Any:
        try:
            return await call(context)
        except RequestError as problem:
            words = [(name.decode(), value.decode()) for name, value in error_headers(problem)]
            retry = tuple(pair for pair in words if pair[0] == "retry-after")
            code = CODES.get(problem.status, grpc.StatusCode.UNKNOWN)
            await context.abort(code, str(problem), trailing_metadata=retry)
        except Exception:
            log.exception("a call by gRPC failed")
            await context.abort(grpc.StatusCode.INTERNAL, FAULT)

    return answer


class Service:
    """The calls of the protocol; each answers a message or raises RequestError."""

    def __init__(self, server: Server) -> None:
        self._server, settings = server, server.settings
        needed = [
            largest_body(version.network.input_spec, settings.max_inputs, PER_NUMBER)
            for version in server.models.values()
        ]
        self.longest = min(max(needed), settings.max_body, settings.max_receiving)
        # Calls that may read at once: gRPC does not say how much of a message is there.
        readers = min(settings.max_receiving // self.longest, MOST_READ)
        share = server.tenants.share
        self._turns = Turns(readers, share, PATIENCE)
        # Both until their answers are sent.
        self._calls = Budget("calls", "under way", MOST_CALLS, share)
        self._calls_without_key = Budget("calls", "under way", MOST_CALLS, 0.5)  # by address

    async def live(self, context: Context) -> Any:
        """Tell whether queued work progresses."""
        self._count_without_key(context)
        return messages.ServerLiveResponse(live=self._server.worker.is_live())

    async def ready(self, context: Context) -> Any:
        """Tell whether all models answer."""
        self._count_without_key(context)
        is_ready = self._server.is_ready and self._server.worker.is_live()
        return messages.ServerReadyResponse(ready=is_ready)

    async def metadata(self, context: Context) -> Any:
        """Name the server."""
        self._count_without_key(context)
        return messages.ServerMetadataResponse(
            name="mimonets", version=installed("mimonets"), extensions=EXTENSIONS
        )

    async def model_ready(self, context: Context) -> Any:
        """Tell whether a model answers."""
        request, _ = await self._read(messages.ModelReadyRequest, context)
        try:
            self._server.find(request.name, request.version or None)
        except RequestError as problem:
            if problem.status != 503:
                raise
            return messages.ModelReadyResponse(ready=False)
        return messages.ModelReadyResponse(ready=True)

    async def model_metadata(self, context: Context) -> Any:
        """Describe a model; its modes are in the metadata over HTTP, this message has no room."""
        request, _ = await self._read(messages.ModelMetadataRequest, context)
        found = self._server.find(request.name, request.version or None)
        described = describe(found.queue, found.network, self._server.settings.slo)
        described.pop("parameters")
        return messages.ModelMetadataResponse(**described)

    async def index(self, context: Context) -> Any:
        """List the models."""
        await self._read(messages.RepositoryIndexRequest, context)
        entries = [
            messages.RepositoryIndexResponse.ModelIndex(
                name=name, version=version.number, state="READY"
            )
            for name, version in self._server.models.items()
        ]
        return messages.RepositoryIndexResponse(models=entries)

    async def load(self, context: Context) -> Any:
        """Load a model again."""
        request, tenant = await self._read(messages.RepositoryModelLoadRequest, context)
        await self._server.load_for(tenant, request.model_name)
        return messages.RepositoryModelLoadResponse()

    async def infer(self, context: Context) -> Any:
        """Answer the one message of an inference request."""
        server, begun = self._server, self._server.clock()
        remaining = context.time_remaining()
        with CountedRequest(server, "", _metadata(context)) as counted:
            async with self._content(context) as (content, tenant):
                request, found, header, inputs = await server.decoders.run(
                    tenant.name,
                    begun + server.settings.body_timeout,
                    lambda check: self._decode(content, counted),
                    at_once=len(content) <= BINARY_ON_LOOP,
                )
            options = header.options
            if remaining is not None and remaining < LONGEST:
                options = replace(options, timeout=min(remaining, options.timeout or remaining))
            answered = await server.answer(found, inputs, options, tenant, begun=begun)
        spec = found.network.input_spec
        outputs, facts = make_outputs(answered, header, spec), response_parameters(answered)
        if spec.answers == "values":
            del facts["confidence"]  # which classes have
        return messages.ModelInferResponse(
            model_name=answered.queue.name,
            model_version=answered.queue.version,
            id=request.id,
            parameters={name: _parameter(value) for name, value in facts.items()},
            outputs=[
                messages.ModelInferResponse.InferOutputTensor(
                    name=one["name"], datatype=one["datatype"], shape=one["shape"]
                )
                for one, _ in outputs
            ],
            raw_output_contents=[content for _, content in outputs],
        )

    def _decode(
        self, content: bytes, counted: CountedRequest
    ) -> tuple[Any, Version, RequestHeader, Array]:
        """Read a message: itself, the model that it asks, what it asks for and its inputs."""
        _check_parts(content)
        request = _parse(messages.ModelInferRequest, content)
        counted.name = request.model_name
        found = self._server.find(request.model_name, request.model_version or None)
        raw, described = _as_json(request)
        spec = found.network.input_spec
        header = read_header(described, spec, self._server.settings.max_inputs)
        inputs = read_inputs(header, raw, spec, takes_short=found.network.takes_short)
        return request, found, header, inputs

    def _count_without_key(self, context: Context) -> None:
        _count(self._calls_without_key, context.peer().rpartition(":")[0], context)

    async def _read(self, kind: Any, context: Context) -> tuple[Any, Tenant]:
        """Read the message of a call; returns it, and who sent it."""
        async with self._content(context) as (content, tenant):
            if len(content) > LARGE:
                raise RequestError(413, f"A {kind.__name__} may have at most {LARGE} bytes.")
            return _parse(kind, content), tenant

    @asynccontextmanager
    async def _content(self, context: Context) -> AsyncIterator[tuple[bytes, Tenant]]:
        """Receive the bytes of a message, and say whose they are; counted while they are used."""
        tenant = find_tenant(self._server, _metadata(context))
        _count(self._calls, tenant.name, context)
        with Body(self._server.bodies, tenant.name) as body:
            yield await body.read(partial(self._receive, context, tenant), {}, self.longest), tenant

    async def _receive(self, context: Context, tenant: Tenant) -> dict[str, Any]:
        """Receive the message of a call like the body of a request, once there is room."""
        async with self._turns.take(tenant.name):
            content = await context.read()
        if content is grpc.aio.EOF:
            raise RequestError(400, "The call ended without a message.")
        return {"type": "http.request", "body": content}


def _count(calls: Budget, who: str, context: Context) -> None:
    """Count a call until it has ended, or refuse it."""
    calls.check(who, 1)
    calls.add(who, 1)
    context.add_done_callback(lambda _: calls.add(who, -1))


def _check_parts(content: bytes) -> None:
    """Refuse what takes far more memory and time than its bytes, before it is parsed.

    An empty part has two bytes and takes forty times as much; typed numbers are read one by one.
    """
    if len(content) <= LARGE:
        return
    at = beside = count = 0
    while at < len(content):
        tag, at = _varint(content, at)
        size, at = _varint(content, at)
        at, count = at + size, count + 1
        beside += size if tag >> 3 != RAW else 0
        if tag & 7 != 2 or count > MOST_PARTS:
            raise RequestError(400, f"The message is no request, or has over {MOST_PARTS} parts.")
    if beside > LONGEST_JSON:
        raise RequestError(
            413, f"{beside} bytes beside raw contents; at most {LONGEST_JSON} are taken."
        )


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Read a number of protobuf, seven bits a byte; returns where it ends, too."""
    value = 0
    for place, byte in enumerate(content[at : at + 10]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise RequestError(400, "The message is cut short.")


def _parse(kind: Any, content: bytes) -> Any:
    try:
        return kind.FromString(content)
    except DecodeError:
        raise RequestError(400, f"The message is no {kind.__name__}.") from None


def _metadata(context: Context) -> dict[bytes, bytes]:
    """Give the metadata of a call as headers of HTTP."""
    return {
        name.encode(): value if isinstance(value, bytes) else value.encode("latin-1", "replace")
        for name, value in context.invocation_metadata() or ()
    }


def _as_json(request: Any) -> tuple[bytes, dict[str, Any]]:
    """Turn a message into its tensor as bytes, and the JSON that HTTP would have brought."""
    if len(request.inputs) > 1 or len(request.raw_input_contents) > 1:
        raise RequestError(400, "One tensor is wanted, not several.")
    inputs, raw = [], b""
    for given in request.inputs:
        raw = _tensor(given, request.raw_input_contents)
        inputs.append(
            {
                "name": given.name,
                "datatype": given.datatype,
                "shape": list(given.shape),
                "parameters": {"binary_data_size": len(raw)},
            }
        )
    return raw, {
        "inputs": inputs,
        "outputs": [
            {"name": one.name, "parameters": _plain(one.parameters)} for one in request.outputs
        ],
        "parameters": _plain(request.parameters),
    }


def _tensor(given: Any, raw: Any) -> bytes:
    """Find the numbers of a tensor, beside it or inside of it, as bytes."""
    if len(raw):
        if given.HasField("contents"):
            raise RequestError(400, "A tensor has raw_input_contents or contents, not both.")
        return bytes(raw[0])
    field = TYPED.get(given.datatype)
    if field is None:
        if given.datatype in DATATYPES:
            raise RequestError(400, f"{given.datatype} has no typed contents: send raw ones.")
        return b""  # an unknown type, named below
    found = getattr(given.contents, field)
    if len(found) > math.prod(given.shape):  # before they are converted one by one
        raise RequestError(
            400, f"{len(found)} numbers came for the shape {short(list(given.shape))}."
        )
    numbers = np.array(found)
    if given.datatype == "UINT8" and numbers.max(initial=0) > 255:
        raise RequestError(400, "The contents do not fit UINT8.")
    return numbers.astype(DATATYPES[given.datatype]).tobytes()


def _plain(parameters: Any) -> dict[str, Any]:
    """Turn parameters into plain values."""
    chosen = {name: value.WhichOneof("parameter_choice") for name, value in parameters.items()}
    return {name: getattr(parameters[name], kind) for name, kind in chosen.items() if kind}


def _parameter(value: Any) -> Any:
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    return messages.InferParameter(**{kinds[type(value)]: value})
