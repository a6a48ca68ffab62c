"""Whatever comes in, something sensible goes out: no hang, no 5xx but 503 and 504, no leak."""

import asyncio
import json

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.fakes import FakeEngine, client_of, images, listening, make_server, tensor

INFER = "/v2/models/digits/infer"
words = st.text(max_size=8) | st.integers() | st.floats(width=32) | st.booleans() | st.none()
names = st.text(max_size=8)
anything = st.recursive(
    words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
SETTINGS = ("outputs", "id", "mode", "cascade", "priority", "binary_data_output", "timeout")


@st.composite
def nearly_right(draw):
    """A right request in which one or two things are replaced by anything."""
    request = tensor(images(1), timeout=2_000_000)
    places = (request, request["inputs"][0], request["parameters"])
    for _ in range(draw(st.integers(1, 2))):
        target = places[draw(st.integers(0, 2))]
        target[draw(st.sampled_from(sorted({*target, *SETTINGS})))] = draw(anything)
    return request


def send_all(bodies, headers=None):
    async def main():
        server = make_server(FakeEngine(), slo=2.0)
        async with client_of(server) as client:
            codes = []
            for body in bodies:
                response = await asyncio.wait_for(
                    client.post(INFER, content=body, headers=headers), 10
                )
                codes.append(response.status_code)
                if response.status_code != 200:
                    assert response.json()["error"]
            assert server.batcher.is_empty(), "requests leaked"
            assert server.worker.errors == 0
            after = await client.post(INFER, json=tensor(images(2)))
            assert after.status_code == 200
            return codes

    return asyncio.run(main())


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(nearly_right() | anything, min_size=1, max_size=20))
def test_requests_that_are_nearly_right(requests):
    codes = send_all([json.dumps(request).encode() for request in requests])
    assert set(codes) <= {200, 400, 413, 429, 504}


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.binary(max_size=200), min_size=1, max_size=20), st.text("0123456789-x", max_size=4)
)
def test_bytes_that_are_no_requests(bodies, length):
    headers = {"inference-header-content-length": length}
    assert set(send_all(bodies, headers)) <= {400}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_malformed_requests():
    collected = []

    @settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(nearly_right() | anything, min_size=20, max_size=20))
    def collect(requests):
        collected.extend(json.dumps(request).encode() for request in requests)

    collect()
    codes = send_all(collected[:10_000])
    assert set(codes) <= {200, 400, 413, 429, 504}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_schemathesis_finds_no_server_error():
    schemathesis = pytest.importorskip("schemathesis", reason="pip install schemathesis")
    with listening(make_server(FakeEngine(), slo=2.0)) as address:
        schema = schemathesis.openapi.from_url(f"http://{address}/openapi.json")
        count = 0
        for operation in schema.get_all_operations():
            call = operation.ok()

            @settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
            @given(case=call.as_strategy())
            def check(case):
                response = case.call(base_url=f"http://{address}", timeout=10)
                assert response.status_code < 500 or response.status_code in (503, 504)

            check()
            count += 1
        assert count >= 10
        assert httpx.get(f"http://{address}/v2/health/live").status_code == 200
