"""Spans of a request: what it waited for and which pass answered it; none unless asked for."""

import asyncio

import numpy as np
import pytest

from mimonets.serving.tenants import Tenant, Tenants
from serving.fakes import client_of, images, make_server, tensor

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="pip install '.[tracing]'")
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

from mimonets.serving.tracing import Tracing  # noqa: E402

INFER = "/v2/models/digits/infer"


def spans_of(*calls, **settings):
    """Send requests to a traced server; gives the spans, by name."""
    kept, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))

    async def main():
        server = make_server(**settings)
        server.tracing = Tracing(provider, server.clock)
        async with client_of(server) as client:
            for call in calls:
                await call(client)
            return kept.get_finished_spans()

    found = {}
    for span in asyncio.run(main()):
        found.setdefault(span.name, []).append(span)
    return found


def test_a_request_is_a_span_with_decode_queue_and_pass():
    async def call(client):
        request = tensor(images(1, 2, 0, 1), superpose=True)
        assert (await client.post(INFER, json=request)).status_code == 200

    found = spans_of(call)
    assert set(found) == {"infer digits", "decode", "queue", "pass"}
    (whole,) = found["infer digits"]
    assert whole.attributes["http.response.status_code"] == 200
    inside = [found[name][0] for name in ("decode", "queue", "pass")]
    assert all(span.parent.span_id == whole.context.span_id for span in inside)
    decode, queue, passed = inside
    assert dict(passed.attributes) == {
        "mimonets.inputs": 4,
        "mimonets.group_size": 4,
        "mimonets.operating_point": "4 active",
        "mimonets.active_streams": 4,
        "mimonets.cascaded": False,
    }
    assert decode.attributes["mimonets.inputs"] == 4
    assert decode.end_time == queue.start_time <= queue.end_time == passed.start_time
    slack = 50_000_000  # ns: clocks of the system and of the server
    assert whole.start_time - slack <= decode.start_time
    assert passed.end_time <= whole.end_time + slack


def test_spans_join_the_trace_of_the_client():
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"

    async def call(client):
        header = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
        await client.post(INFER, json=tensor(images(1)), headers=header)

    found = spans_of(call)
    assert {f"{span.context.trace_id:032x}" for spans in found.values() for span in spans} == {
        trace
    }


def test_requests_that_are_refused_are_spans_too():
    async def without_key(client):
        await client.post(INFER, json=tensor(images(1)))

    async def unknown(client):
        await client.post("/v2/models/other/infer", json={}, headers={"x-api-key": "k" * 16})

    found = spans_of(without_key, unknown, tenants=Tenants({"k" * 16: Tenant(name="a")}))
    every = [span for spans in found.values() for span in spans]
    status = [span.attributes["http.response.status_code"] for span in every]
    assert set(found) == {"infer digits", "infer"}, "clients do not choose names of spans"
    assert sorted(status) == [401, 404]


def test_without_tracing_nothing_of_it_is_called():
    async def main():
        server = make_server()
        assert server.tracing is None
        async with client_of(server) as client:
            answer = await client.post(INFER, json=tensor(images(2)))
            return np.argmax(answer.json()["outputs"][0]["data"])

    assert asyncio.run(main()) == 2
