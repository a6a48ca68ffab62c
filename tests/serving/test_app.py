import asyncio
import base64
import gc
import io
import json
import struct
import time
import zlib
from functools import partial

import httpx
import numpy as np
import pytest
from PIL import Image

from mimonets.serving.bodies import Bodies, Body
from mimonets.serving.images import read_images
from mimonets.serving.infer import client_leaves
from mimonets.serving.model_queue import ModelQueue
from mimonets.serving.operating_points import ServiceTime
from mimonets.serving.policy import Policy
from mimonets.serving.protocol import decode_request
from mimonets.serving.request_options import (
    RequestError,
    RequestOptions,
    make_request,
    read_options,
)
from mimonets.serving.tenants import EVERYONE, Tenant, Tenants, read_api_keys
from serving.fakes import SPEC, FakeEngine, client_of, images, make_point, make_server, tensor

INFER = "/v2/models/digits/infer"


def run(coroutine):
    return asyncio.run(coroutine)


def once(call, **settings):
    """Start a server, let ``call(client, server)`` talk to it, stop it."""

    async def main():
        server = make_server(**settings)
        async with client_of(server) as client:
            return await call(client, server)

    return run(main())


def picture(value, size=(2, 2), kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(np.full((size[1], size[0]), value, dtype=np.uint8)).save(file, kind)
    return file.getvalue()


def test_answers_come_in_order_and_say_how_they_came_about():
    async def call(client, server):
        return await client.post(INFER, json=tensor(images(2, 0, 1)))

    response = once(call)
    assert response.status_code == 200
    content = response.json()
    assert content["model_name"] == "digits"
    assert content["model_version"] == "1"
    (output,) = content["outputs"]
    assert output["shape"] == [3, 3]
    assert np.reshape(output["data"], (3, 3)).argmax(axis=1).tolist() == [2, 0, 1]
    parameters = content["parameters"]
    assert set(parameters) >= {
        "active_streams",
        "group_size",
        "confidence",
        "expected_accuracy",
        "queue_us",
        "compute_us",
        "cascaded",
    }
    assert parameters["expected_accuracy"] == 0.99
    assert parameters["active_streams"] == 1


def binary(pixels, **parameters):
    """Make a request whose tensor follows its JSON, and the length of that JSON."""
    inputs = images(*pixels)
    request = tensor(inputs, **parameters)
    request["inputs"][0].pop("data")
    request["inputs"][0]["parameters"] = {"binary_data_size": inputs.nbytes}
    request["outputs"] = [{"name": "label"}]
    text = json.dumps(request).encode()
    return text + inputs.tobytes(), {"Inference-Header-Content-Length": str(len(text))}


def test_a_tensor_that_is_too_short_or_too_long_is_refused():
    async def call(client, server):
        body, headers = binary([2])
        short = await client.post(INFER, content=body[:-1], headers=headers)
        assert short.status_code == 400
        assert "15 bytes came" in short.json()["error"]
        body, headers = binary([1] * 9)
        assert (await client.post(INFER, content=body, headers=headers)).status_code == 413

    once(call, max_inputs=8)


def test_the_framework_answers_as_the_short_way_does():
    """Below another path, requests go through FastAPI."""

    async def call(client, server):
        from fastapi import FastAPI

        outer = FastAPI()
        outer.mount("/below", client._transport.app)
        transport = httpx.ASGITransport(outer)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as mounted:
            for request in (tensor(images(2, 1)), tensor(images(1), mode="turbo"), {}):
                short = await client.post(INFER, json=request)
                long = await mounted.post(f"/below{INFER}", json=request)
                assert short.status_code == long.status_code
                assert short.headers["content-type"] == long.headers["content-type"]
                assert short.json().get("outputs") == long.json().get("outputs")
                assert short.json().get("error") == long.json().get("error")

    once(call)


def test_an_error_inside_the_server_is_500_and_says_nothing_else(monkeypatch):
    async def call(client, server):
        monkeypatch.setattr(server, "answer", None)
        return await client.post(INFER, json=tensor(images(1)))

    response = once(call)
    assert response.status_code == 500
    assert response.json() == {"error": "An error inside the server; its log says more."}


def test_outputs_can_be_chosen():
    async def call(client, server):
        wanted = [{"name": "label"}, {"name": "probabilities"}]
        return await client.post(INFER, json={**tensor(images(2, 1)), "outputs": wanted, "id": "7"})

    content = once(call).json()
    label, chances = content["outputs"]
    assert label["data"] == [2, 1]
    assert np.sum(np.reshape(chances["data"], (2, 3)), axis=1) == pytest.approx([1, 1])
    assert content["id"] == "7"


@pytest.mark.parametrize("name", ["min_acuracy", "Mode", "determinstic"])
def test_a_misspelt_parameter_is_refused_and_one_of_another_server_is_not(name):
    async def call(client, server):
        response = await client.post(INFER, json=tensor(images(1), **{name: 1}))
        assert response.status_code == 400
        assert "did you mean" in response.json()["error"]
        response = await client.post(INFER, json=tensor(images(1), sequence_id=7, model="x"))
        assert response.status_code == 200

    once(call)


def asked(points, parameters):
    """Make a request with these parameters for these operating points."""
    queue, options = ModelQueue("model", Policy(points)), read_options(parameters)
    return make_request(queue, images(1), options, EVERYONE, arrival=0.0, slo=1.0)


def test_requests_choose_how_fast_is_too_fast():
    accuracies = {1: 0.997, 2: 0.993, 4: 0.987}
    points = [make_point(A, ServiceTime(), accuracy) for A, accuracy in accuracies.items()]
    assert asked(points, {}).fastest == 2
    assert asked(points, {"mode": 3}).fastest == 1
    assert asked(points, {"min_accuracy": 0.99}).fastest == 1
    for more in ({}, {"deterministic": True}, {"mode": "slow"}):
        with pytest.raises(RequestError, match=r"min_accuracy=0.999.*1 active: 0.9970") as caught:
            asked(points, {"min_accuracy": 0.999, **more})
        assert caught.value.status == 400


@pytest.mark.parametrize(
    ("mode", "most"), [("slow", "big"), ("normal", "middle"), ("fast", "small"), (1, "small")]
)
def test_slow_is_the_big_one_of_several_networks(mode, most):
    time = ServiceTime(per_pass=0.01)
    names = ("big", "middle", "small")
    points = [
        make_point(1, time, 0.9 - n / 10, name=name, number=n) for n, name in enumerate(names)
    ]
    assert names[asked(points, {"mode": mode}).fastest] == most


@pytest.mark.parametrize("parameters", [{"mode": "slow"}, {"mode": 1}, {"deterministic": True}])
def test_slow_runs_alone_where_one_input_per_pass_is_not_worth_serving(parameters):
    points = [make_point(A, ServiceTime(per_pass=0.01), 0.9 - A / 100) for A in (2, 4)]
    one, two = asked(points, parameters), asked(points, {"mode": 2})
    assert (one.fastest, one.alone) == (0, True)
    assert (two.fastest, two.alone) == (0, False)


def test_raw_pixels_are_prepared_as_in_training():
    async def call(client, server):
        request = tensor(images(200))
        request["inputs"][0] |= {"datatype": "UINT8", "data": [200, 0, 0, 0]}
        response = await client.post(INFER, json=request)
        return response, server.models["digits"].network

    engine = FakeEngine()
    response, _ = once(call, engine=engine)
    assert response.status_code == 200
    assert engine.calls[-1][1][0, 0, 0, 0] == pytest.approx((200 - 100) / 50)


BAD = {
    "no JSON": b"{",
    "no object": b"[]",
    "no inputs": b"{}",
    "another name": {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]},
    "NaN": b'{"inputs": [{"name": "input", "datatype": "FP32", "shape": [1,1,2,2], '
    b'"data": [NaN, 1, 1, 1]}]}',
    "too few numbers": {
        "inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 1, 2, 2], "data": [1]}]
    },
    "words": {
        "inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 1, 2, 2], "data": ["1"] * 4}]
    },
    "ragged": {
        "inputs": [
            {"name": "input", "datatype": "FP32", "shape": [1, 1, 2, 2], "data": [[1, 2], [3]]}
        ]
    },
    "negative shape": {
        "inputs": [{"name": "input", "datatype": "FP32", "shape": [-1, 4], "data": [1]}]
    },
    "huge shape": {
        "inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 2**30], "data": [1]}]
    },
    "another shape": {
        "inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 4], "data": [1] * 4}]
    },
    "integers": {
        "inputs": [{"name": "input", "datatype": "INT64", "shape": [1, 1, 2, 2], "data": [1] * 4}]
    },
    "out of range": tensor(images(1e30)),
    "far beyond any pixel": tensor(images(7)),  # a white pixel is (255 - 100) / 50 = 3.1
    "overflowing": {
        "inputs": [{"name": "input", "datatype": "UINT8", "shape": [1, 1, 2, 2], "data": [999] * 4}]
    },
    "a datatype that is a list": {
        "inputs": [{"name": "input", "datatype": [], "shape": [1, 1, 2, 2], "data": [1] * 4}]
    },
    "unknown output": {**tensor(images(1)), "outputs": [{"name": "nothing"}]},
    "a mode that is none": tensor(images(1), mode="turbo"),
    "an accuracy that no mode has": tensor(images(1), min_accuracy=0.999),
    "a timeout that is no number": tensor(images(1), timeout="soon"),
    "announced bytes that do not come": {
        "inputs": [
            {
                "name": "input",
                "datatype": "FP32",
                "shape": [1, 1, 2, 2],
                "parameters": {"binary_data_size": 16},
            }
        ]
    },
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_bad_request_is_refused_before_it_is_queued(bad):
    async def call(client, server):
        body = bad if isinstance(bad, bytes) else json.dumps(bad).encode()
        before = len(engine.calls)
        response = await client.post(INFER, content=body)
        assert len(engine.calls) == before
        return response

    engine = FakeEngine()
    response = once(call, engine=engine)
    assert response.status_code == 400
    assert response.json()["error"]


SMALL = b'{"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 1, 2, 2], "data": %s}]}'
GREEDY = {
    "a shape of many sides": SMALL.replace(b"1, 1", b"1" + b",2147483647" * 5000) % b"[0]",
    "an output many times": SMALL[:-1] % b"[1,1,1,1]"
    + b',"outputs":[%s]}' % b",".join([b'{"name": "logits"}'] * 3000),
    "far more numbers than the shape has": SMALL % (b"[" + b"0," * 20_000 + b"0]"),
    "many empty lists": SMALL % (b"[" + b"[]," * 20_000 + b"[]]"),
    "a long word among the numbers": SMALL % (b'[1,1,1,"%s"]' % (b"x" * 60_000)),
    "a long name": SMALL.replace(b'"input"', b'"' + b"x" * 60_000 + b'"') % b"[1,1,1,1]",
    "a long mode": SMALL[:-1] % b"[1,1,1,1]" + b',"parameters":{"mode":"%s"}}' % (b"x" * 60_000),
}


@pytest.mark.parametrize("body", GREEDY.values(), ids=GREEDY)
def test_a_request_that_asks_for_much_work_is_refused_in_one_short_line(body):
    started = time.thread_time()
    with pytest.raises(RequestError) as caught:
        decode_request(body, None, SPEC, takes_short=False, max_inputs=256)
    assert time.thread_time() - started < 3  # a collection of garbage may fall into it
    assert caught.value.status == 400
    assert len(str(caught.value)) < 250


def test_json_that_no_input_needs_is_not_decoded(monkeypatch):
    monkeypatch.setattr("mimonets.serving.protocol.read_json", None)
    with pytest.raises(
        RequestError, match="at most 106496 are taken.*send fewer inputs, or binary"
    ) as caught:
        decode_request(b" " * 200_000, None, SPEC, takes_short=False, max_inputs=256)
    assert caught.value.status == 413


@pytest.mark.parametrize("nested", [[1, 2, 3, 4], [[[[1, 2], [3, 4]]]], [[1, 2], [3, 4]]])
def test_numbers_come_flat_or_nested(nested):
    _, inputs = decode_request(
        SMALL % json.dumps(nested).encode(), None, SPEC, takes_short=False, max_inputs=1
    )
    assert inputs.ravel().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("length", ["\N{SUPERSCRIPT TWO}", "9" * 5000, "-1", "", "1_0"])
def test_a_length_of_the_header_that_is_none_is_named(length):
    with pytest.raises(RequestError, match="must be an integer from 0 to 2, the bytes") as caught:
        decode_request(b"{}", length, SPEC, takes_short=False, max_inputs=1)
    assert caught.value.status == 400


def test_limits_are_413():
    async def call(client, server):
        many = await client.post(INFER, json=tensor(images(*range(9))))
        large = await client.post(INFER, content=b" " * 5000)

        async def stream():
            for _ in range(100):
                yield b" " * 100

        streamed = await client.post(INFER, content=stream())
        return many, large, streamed

    for response in once(call, max_inputs=8, max_body=4096):
        assert response.status_code == 413


def test_compressed_requests_are_415():
    async def call(client, server):
        return await client.post(INFER, content=b"x", headers={"content-encoding": "gzip"})

    assert once(call).status_code == 415


def test_models_and_versions_that_are_not_there_are_404():
    async def call(client, server):
        return [
            await client.post("/v2/models/digit/infer", json=tensor(images(1))),
            await client.post("/v2/models/digits/versions/7/infer", json=tensor(images(1))),
            await client.get("/nothing"),
        ]

    first, second, third = once(call)
    assert first.status_code == second.status_code == third.status_code == 404
    assert "did you mean 'digits'" in first.json()["error"]


def test_metadata_and_health():
    async def call(client, server):
        paths = ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/digits/ready")
        for path in paths:
            assert (await client.get(path)).status_code == 200, path
        described = (await client.get("/v2/models/digits/versions/1")).json()
        assert described["inputs"] == [
            {"name": "input", "datatype": "FP32", "shape": [-1, 1, 2, 2]}
        ]
        modes = described["parameters"]["modes"]
        assert {mode["accuracy"] for mode in modes} <= {0.99, 0.97, 0.93}
        text = (await client.get("/metrics")).text
        await client.post(INFER, json=tensor(images(1)))
        after = (await client.get("/metrics")).text
        assert 'mimonets_inputs_total{mode="1",model="digits"} 1.0' in after
        assert "mimonets_queued_inputs 0.0" in text
        assert 'mimonets_requests_total{model="digits",status="200"} 1.0' in after

    once(call, engine=FakeEngine(per_pass=0.001))


def test_refused_requests_are_counted_too():
    async def call(client, server):
        await client.post(INFER, content=b"{")
        await client.post(INFER, json=tensor(images(*[1] * 300)))
        await client.post("/v2/models/nobody-made-this/infer", content=b"{}")
        await client.post("/v1/classify", content=b"x", headers={"content-type": "image/png"})
        text = (await client.get("/metrics")).text
        return {line for line in text.splitlines() if line.startswith("mimonets_requests_total")}

    assert once(call) == {
        f'mimonets_requests_total{{model="{model}",status="{status}"}} 1.0'
        for model, status in (("digits", 400), ("digits", 413), ("", 404), ("digits", 415))
    }


def test_json_with_more_values_than_images_could_need_is_not_decoded(monkeypatch):
    async def call(client, server):
        monkeypatch.setattr("mimonets.serving.protocol.orjson.loads", lambda body: 1 / 0)
        body = b'{"images": [' + b",".join([b"[]"] * 1000) + b"]}"
        return await client.post(
            "/v1/classify", content=body, headers={"content-type": "application/json"}
        )

    response = once(call)
    assert response.status_code == 413
    assert "more than 612 values" in response.json()["error"]


def test_sixteen_bits_per_pixel_become_eight_as_in_training():
    file = io.BytesIO()
    pixels = np.full((2, 2), 150 * 256 + 99, dtype=np.uint16)
    Image.fromarray(pixels).save(file, "PNG")
    assert (read_images([file.getvalue()], SPEC, 100) == (150 - 100) / 50).all()


def test_pixels_of_all_images_together_are_limited():
    small, large = picture(150, size=(30, 30)), picture(150, size=(40, 30))
    assert read_images([small, large], SPEC, 2100).shape == (2, 1, 2, 2)
    for files, pixels in (([small, large], 2099), ([large], 1199)):
        with pytest.raises(RequestError, match=r"\d+ pixels in one request; at most") as caught:
            read_images(files, SPEC, pixels)
        assert caught.value.status == 413


@pytest.mark.parametrize(
    "side", [10_000, 20_000]
)  # Pillow warns of the first, and refuses the other
def test_an_image_that_would_fill_memory_is_413(side):
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"0")), (b"IEND", b""))
    bomb = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    with pytest.raises(RequestError, match="pixels in one request; at most 16000000") as caught:
        read_images([bomb], SPEC, 16_000_000)
    assert caught.value.status == 413


def test_image_files_are_classified():
    async def call(client, server):
        file, jpeg = picture(150), picture(200, kind="JPEG")  # 1 and 2 after standardising
        url = "data:image/png;base64," + base64.b64encode(file).decode()
        return [
            await client.post("/v1/classify", content=file, headers={"content-type": "image/png"}),
            await client.post("/v1/classify", json={"images": [url, url], "mode": "slow"}),
            await client.post(
                "/v1/classify", files=[("files", file), ("files", jpeg)], data={"mode": "2"}
            ),
            await client.post(
                "/v1/classify",
                content=picture(150, size=(40, 20)),
                headers={"content-type": "image/png"},
            ),
        ]

    responses = once(call)
    labels = [[one["label"] for one in response.json()["answers"]] for response in responses]
    assert labels == [["one"], ["one", "one"], ["one", "two"], ["one"]]
    assert responses[0].json()["answers"][0]["probability"] > 0.9


def test_files_that_are_no_images_are_415_and_large_ones_413():
    async def call(client, server):
        png = {"content-type": "image/png"}
        return [
            (await client.post("/v1/classify", content=content, headers=png)).status_code
            for content in (b"nonsense", picture(1)[:40], picture(1, size=(100, 100)))
        ] + [
            (await client.post("/v1/classify", json={"images": ["nonsense"]})).status_code,
            (await client.post("/v1/classify", json={"images": []})).status_code,
            (await client.post("/v1/classify", json={"images": "x"})).status_code,
            (
                await client.post("/v1/classify", content=b"x", headers={"content-type": "a/b"})
            ).status_code,
        ]

    assert once(call, max_pixels=5000) == [415, 415, 413, 400, 400, 400, 415]


KEYS = Tenants(
    {
        "key-of-a-key-of-a": Tenant(name="a", quota=2),
        "key-of-b-key-of-b": Tenant(name="b", admin=True),
    }
)


def test_a_key_is_needed_where_there_are_keys():
    async def call(client, server):
        bearer = {"authorization": "Bearer key-of-a-key-of-a"}
        header = {"x-api-key": "key-of-b-key-of-b"}
        wrong = {"x-api-key": "key-of-c-key-of-c"}
        return [
            (await client.post(INFER, json=tensor(images(1)), headers=headers)).status_code
            for headers in ({}, wrong, bearer, header)
        ] + [
            (await client.get("/metrics")).status_code,
            (await client.get("/v2/health/live")).status_code,
        ]

    assert once(call, tenants=KEYS) == [401, 401, 200, 200, 401, 200]


def test_a_tenant_over_quota_is_429():
    async def call(client, server):
        headers = {"authorization": "Bearer key-of-a-key-of-a"}
        return await client.post(INFER, json=tensor(images(1, 1, 1)), headers=headers)

    response = once(call, tenants=KEYS)
    assert response.status_code == 429
    assert "3 inputs in one request; the quota is 2" in response.json()["error"]
    assert "retry-after" not in response.headers, "it would never fit"


def test_keys_are_read_from_a_file(tmp_path):
    path = tmp_path / "keys.json"
    path.write_text('{"0123456789abcdef": {"tenant": "a", "shares": true}}')
    assert read_api_keys(path).find("0123456789abcdef").shares
    assert read_api_keys(path).find("another") is None
    for content, message in (
        ("{", "not JSON"),
        ("{}", "holds no keys"),
        ('{"short": {"tenant": "a"}}', "at least 16"),
        ('{"0123456789abcdef": {"tenant": "a", "share": true}}', "did you mean 'shares'"),
        ('{"0123456789abcdef": {"tenant": "a", "quota": 0}}', "quota=0 must be"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            read_api_keys(path)


def test_only_the_names_of_the_server_reach_it():
    async def call(client, server):
        hosts = (
            "test",
            "TEST:8000",
            "[::1]:80",
            "evil.example",
            "test.evil.example",
            "[",
            "\u00e9",
        )
        encoded = [{"host": host.encode()} for host in hosts]
        return [(await client.get("/v2", headers=given)).status_code for given in encoded]

    assert once(call, hosts=("test", "::1")) == [200, 200, 200, 421, 421, 421, 421]


def test_a_request_can_ask_to_be_superposed_when_idle():
    async def call(client, server):
        return await client.post(INFER, json=tensor(images(0, 1, 2, 0), superpose=True))

    engine = FakeEngine(per_pass=0.002)
    content = once(call, engine=engine).json()
    assert content["parameters"]["active_streams"] == 4
    assert engine.calls[-1][0] == 4
    assert len(engine.calls[-1][1]) == 4


@pytest.mark.parametrize("ending", ["disconnect", "error", "answer"])
def test_a_client_that_leaves_is_noticed_only_while_somebody_waits(ending, caplog):
    async def call(client, server):
        messages = asyncio.Queue()

        async def receive():
            await asyncio.sleep(0)
            message = await messages.get()
            if message is None:
                raise OSError("the connection broke")
            return message

        engine.hold.clear()
        found, leaves = server.find("digits"), partial(client_leaves, receive)
        answer = server.answer(found, images(1), RequestOptions(), EVERYONE, leaves)
        waiting = asyncio.ensure_future(answer)
        messages.put_nowait({"type": "http.request"})  # more of a body is no farewell
        await asyncio.sleep(0.02)
        assert not waiting.done()
        if ending == "answer":
            engine.hold.set()
            assert (await waiting).answers[0].output.argmax() == 1
            messages.put_nowait({"type": "http.disconnect"})
        else:
            messages.put_nowait(None if ending == "error" else {"type": "http.disconnect"})
            with pytest.raises(RequestError, match="client left") as caught:
                await waiting
            assert caught.value.status == 499
            engine.hold.set()
        await asyncio.sleep(0.02)
        assert server.batcher.is_empty()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not [task for task in others if "client_leaves" in repr(task)], "nobody listens"

    engine = FakeEngine()
    once(call, engine=engine)
    gc.collect()
    assert not [record for record in caplog.records if "never retrieved" in record.getMessage()]


@pytest.mark.parametrize("parts", [[b"abc"], [b"", b"a", b"bc"], [b"a" * 2000]])
@pytest.mark.parametrize("waits", [False, True])
def test_a_body_is_read_whole_and_counted_however_it_comes(parts, waits):
    async def main():
        left = list(parts)

        async def receive():
            if waits:
                await asyncio.sleep(0.001)
            part = left.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(left)}

        bodies, total = Bodies(most=10_000), len(b"".join(parts))
        with Body(bodies, "a") as body:
            if total <= 1024:
                assert await body.read(receive, {}, 1024) == b"".join(parts)
                assert bodies.held == bodies.by_tenant["a"] == total
            else:
                with pytest.raises(RequestError, match="at most 1024 bytes"):
                    await body.read(receive, {}, 1024)
        assert bodies.held == bodies.by_tenant["a"] == 0

    run(main())
