"""Bodies that are sent slowly, in masses, or not at all."""

import asyncio
import base64
import json
import threading

import pytest

from mimonets._inputs import InputSpec
from mimonets.serving import classify, infer
from mimonets.serving.bodies import Bodies, Body
from mimonets.serving.errors import RequestError
from mimonets.serving.protocol import decode_request, largest_body
from mimonets.serving.tenants import Tenant, Tenants
from serving.fakes import SPEC, client_of, images, make_server, tensor
from serving.hostile_files import png

INFER = "/v2/models/digits/infer"
TWO = Tenants({name * 16: Tenant(name=name) for name in "ab"})


class Stalled:
    """A client that sends some parts and then nothing."""

    def __init__(self, *parts):
        self.parts, self.stalls = list(parts), asyncio.Event()

    async def receive(self):
        if not self.parts:
            self.stalls.set()
            await asyncio.sleep(60)
        return {"type": "http.request", "body": self.parts.pop(0), "more_body": True}


def test_bytes_under_way_are_limited_in_all_and_per_tenant():
    async def main():
        bodies = Bodies(most=100, share=0.5)
        held = []

        async def read(tenant, *parts):
            client = Stalled(*parts)

            async def stay():
                with Body(bodies, tenant) as body:
                    await body.read(client.receive, {}, 1000)

            task = asyncio.create_task(stay())
            stalls = asyncio.create_task(client.stalls.wait())
            await asyncio.wait([task, stalls], return_when=asyncio.FIRST_COMPLETED)
            stalls.cancel()
            if task.done():
                task.result()
            held.append(task)

        await read("a", b"x" * 30, b"x" * 30)  # alone: more than its share
        with pytest.raises(RequestError, match="60 bytes under way; its limit is 50") as caught:
            await read("a", b"x")
        assert caught.value.status == 429
        await read("b", b"x" * 40)
        with pytest.raises(RequestError, match="100 bytes are under way"):
            await read("c", b"x")
        assert (bodies.held, bodies.by_tenant["a"]) == (100, 60)
        bodies.end(0.01)
        ended = await asyncio.gather(*held, return_exceptions=True)
        assert [error.status for error in ended] == [503, 503]
        assert bodies.held == bodies.by_tenant["a"] == 0
        assert not bodies.timers

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_body_is_limited_by_what_its_model_takes():
    """Twelve stalled bodies of 59 MB for a network of 4 pixels took 680 MB."""

    async def main():
        server = make_server()
        most = largest_body(SPEC, server.settings.max_inputs)
        async with client_of(server) as client:
            found = await client.post(INFER, content=b" " * (most + 1))
            assert found.status_code == 413
            assert f"at most {most} bytes" in found.json()["error"]
            full = tensor(images(*[1] * 256))
            assert (await client.post(INFER, json=full)).status_code == 200
            assert server.bodies.held == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    "text", ["data:image/png;base64,\u00e9", "data:image/png;base64,a", "data:image/png;base64,??"]
)
def test_a_data_url_that_is_not_base64_is_400(text):
    async def main():
        async with client_of(make_server()) as client:
            return await client.post("/v1/classify", json={"images": [text]})

    found = asyncio.run(main())
    assert found.status_code == 400
    assert "not base64" in found.json()["error"]


@pytest.mark.parametrize("kind", ["form", "url"])
def test_the_loop_goes_on_while_a_large_form_or_data_url_is_read(kind, monkeypatch):
    """60 MB blocked it for 1.4 s."""
    real, on_threads = classify._read_request, []

    def read(*arguments):
        on_threads.append(threading.current_thread().name)
        return real(*arguments)

    monkeypatch.setattr(classify, "_read_request", read)

    async def main():
        server = make_server()
        async with client_of(server) as client:
            large = png(extra=[(b"tEXt", b"x" * 10_000_000)])
            given = {"files": [("files", large)]}
            if kind == "url":
                given = {
                    "json": {
                        "images": ["data:image/png;base64," + base64.b64encode(large).decode()]
                    }
                }
            request = client.build_request("POST", "/v1/classify", **given)
            await request.aread()
            return await client.send(request)

    found = asyncio.run(main())
    assert found.status_code == 200
    assert [name.partition("_")[0] for name in on_threads] == ["decode"]


def test_large_tensors_in_json_are_decoded_on_a_thread(monkeypatch):
    """400 requests of 256 inputs at once kept the loop busy for seconds."""
    real, on_threads = infer.decode_request, []

    def decode(*arguments, **settings):
        on_threads.append(threading.current_thread().name.partition("_")[0])
        return real(*arguments, **settings)

    async def main():
        async with client_of(make_server()) as client:
            return [
                (await client.post(INFER, json=tensor(images(*[1] * count)))).status_code
                for count in (1, 256, 255)
            ]

    monkeypatch.setattr(infer, "decode_request", decode)
    monkeypatch.setattr(infer, "ON_LOOP", 1000)
    assert asyncio.run(main()) == [200, 200, 200]
    assert on_threads == ["MainThread", "decode", "decode"]


@pytest.mark.parametrize("part", [b"[]", b"{}"])
@pytest.mark.parametrize("side", [32, 224])
def test_json_that_takes_far_more_memory_than_bytes_is_413(part, side):
    spec = InputSpec(kind="image", shape=(3, side, side))
    body = b'{"inputs": [' + b",".join([part] * 2_700_000) + b"]}"
    with pytest.raises(RequestError, match="lists and objects") as caught:
        decode_request(body, None, spec, takes_short=False, max_inputs=256)
    assert caught.value.status == 413


def test_nested_json_of_all_inputs_is_read():
    spec = InputSpec(kind="image", shape=(1, 64, 1))
    data = [[[[0]] * 64]] * 256
    given = {"name": "input", "datatype": "UINT8", "shape": [256, 1, 64, 1], "data": data}
    body = json.dumps({"inputs": [given]}).encode()
    _, inputs = decode_request(body, None, spec, takes_short=False, max_inputs=256)
    assert inputs.shape == (256, 1, 64, 1)


def test_json_that_would_stop_all_threads_is_413():
    spec = InputSpec(kind="image", shape=(3, 224, 224))
    with pytest.raises(RequestError, match="8388609 bytes of JSON; at most 8388608") as caught:
        decode_request(b" " * (2**23 + 1), None, spec, takes_short=False, max_inputs=256)
    assert caught.value.status == 413
