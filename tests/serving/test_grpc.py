"""gRPC by NVIDIA's client as it is: answers, limits, tenants and deadlines as over HTTP."""

import asyncio
import random
import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest

from mimonets.serving.errors import RequestError
from mimonets.serving.protocol import largest_body
from mimonets.serving.tenants import Tenant, Tenants
from serving.fakes import SPEC, FakeEngine, images, make_server
from serving.hostile_calls import BareCaller

triton = pytest.importorskip("tritonclient.grpc", reason="pip install '.[grpc]'")
grpc = pytest.importorskip("grpc")
from tritonclient.grpc import service_pb2, service_pb2_grpc  # noqa: E402

from mimonets.serving import grpc as grpc_room  # noqa: E402

OWN = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
KEYS = {
    "shop-shop-shop-shop": Tenant(name="shop", quota=3),
    "admin-admin-admin-": Tenant(name="operator", admin=True),
}


@contextmanager
def serving(engine=None, loop_factory=None, **settings):
    """Run a server with gRPC alone, in a thread; gives its address and the server."""
    server, ready, address = make_server(engine, **settings), threading.Event(), []

    async def main():
        await server.start()
        calls, port = await grpc_room.start_grpc(server, "127.0.0.1", 0)
        address.append(f"127.0.0.1:{port}")
        server.ended = asyncio.Event()
        server.loop = asyncio.get_running_loop()
        ready.set()
        await server.ended.wait()
        await server.stop(timeout=5)
        await calls.stop(1)

    def run():
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield address[0], server
    finally:
        server.loop.call_soon_threadsafe(server.ended.set)
        thread.join(10)
        assert not thread.is_alive()


@contextmanager
def client_of(*arguments, **settings):
    with (
        serving(*arguments, **settings) as (address, server),
        triton.InferenceServerClient(address, channel_args=OWN) as client,
    ):
        client.address = address
        yield client, server


def tensor(inputs, kind="FP32"):
    given = triton.InferInput("input", list(inputs.shape), kind)
    given.set_data_from_numpy(inputs)
    return [given]


def ask(client, *pixels, **options):
    return client.infer("digits", tensor(images(*pixels)), **options)


def code_of(call, *arguments, **options):
    with pytest.raises(triton.InferenceServerException) as refused:
        call(*arguments, **options)
    return refused.value.status().removeprefix("StatusCode."), refused.value.message()


@pytest.fixture(scope="module")
def shared():
    with client_of() as found:
        yield found


@pytest.fixture
def client(shared):
    return shared[0]


def test_health_and_metadata(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert client.get_server_metadata().name == "mimonets"
    found = client.get_model_metadata("digits")
    assert (found.name, list(found.versions), found.platform) == ("digits", ["1"], "mimonets")
    assert [list(one.shape) for one in found.inputs] == [[-1, 1, 2, 2]]
    assert [one.name for one in found.outputs] == ["logits", "probabilities", "label"]
    (entry,) = client.get_model_repository_index().models
    assert (entry.name, entry.state) == ("digits", "READY")


def test_answers_come_in_order_and_say_how_they_came_about(client):
    wanted = [triton.InferRequestedOutput(name) for name in ("logits", "label")]
    answer = ask(client, 1, 2, 0, outputs=wanted, request_id="seven", parameters={"mode": "slow"})
    assert answer.as_numpy("label").tolist() == [1, 2, 0]
    assert answer.as_numpy("logits").shape == (3, 3)
    response = answer.get_response()
    assert (response.id, response.model_name, response.model_version) == ("seven", "digits", "1")
    assert response.parameters["active_streams"].int64_param == 1
    assert response.parameters["expected_accuracy"].double_param == pytest.approx(0.99)
    assert response.parameters["mode_name"].string_param == "1 active"
    words = triton.InferRequestedOutput("logits", class_count=1)
    assert ask(client, 1, outputs=[words]).as_numpy("logits").tolist() == [[b"5.000000:1:one"]]


@pytest.mark.parametrize(
    ("kind", "field", "values"),
    [
        ("FP32", "fp32_contents", [1.0, 0, 0, 0]),
        ("FP64", "fp64_contents", [1.0, 0, 0, 0]),
        ("UINT8", "uint_contents", [150, 100, 100, 100]),  # standardised by the server
    ],
)
def test_tensors_may_come_typed_or_raw(shared, kind, field, values):
    client, _ = shared
    request = service_pb2.ModelInferRequest(model_name="digits")
    given = request.inputs.add(name="input", datatype=kind, shape=[1, 1, 2, 2])
    getattr(given.contents, field).extend(values)
    answer = client._client_stub.ModelInfer(request)
    typed = np.frombuffer(answer.raw_output_contents[0], np.float32)
    dtype = grpc_room.DATATYPES[kind]
    raw = client.infer("digits", tensor(np.array(values, dtype).reshape(1, 1, 2, 2), kind))
    assert typed.tolist() == raw.as_numpy("logits")[0].tolist() == [0, 5, 0]


def changed(change):
    request = service_pb2.ModelInferRequest(model_name="digits")
    request.inputs.add(name="input", datatype="FP32", shape=[1, 1, 2, 2])
    request.raw_input_contents.append(images(1).tobytes())
    change(request)
    return request


def several(request):
    request.inputs.append(request.inputs[0])


def typed(kind, **contents):
    def change(request):
        del request.raw_input_contents[:]
        request.inputs[0].datatype = kind
        for name, values in contents.items():
            getattr(request.inputs[0].contents, name).extend(values)

    return change


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda r: setattr(r, "model_name", "digit"), "NOT_FOUND", "no model 'digit'"),
        (lambda r: setattr(r, "model_version", "7"), "NOT_FOUND", "version 1, not '7'"),
        (lambda r: r.inputs.pop(), "INVALID_ARGUMENT", "One tensor is wanted"),
        (several, "INVALID_ARGUMENT", "One tensor is wanted"),
        (lambda r: setattr(r.inputs[0], "datatype", "BYTES"), "INVALID_ARGUMENT", "not among"),
        (lambda r: r.inputs[0].shape.append(-1), "INVALID_ARGUMENT", "shape="),
        (lambda r: r.raw_input_contents.pop(), "INVALID_ARGUMENT", "4 x FP32 are 16 bytes"),
        (lambda r: r.raw_input_contents.append(b""), "INVALID_ARGUMENT", "not several"),
        (lambda r: r.inputs[0].contents.fp32_contents.append(1), "INVALID_ARGUMENT", "not both"),
        (typed("UINT8", uint_contents=[1, 2, 3, 300]), "INVALID_ARGUMENT", "do not fit UINT8"),
        (typed("FP16"), "INVALID_ARGUMENT", "send raw ones"),
        (typed("FP32", fp32_contents=[np.nan] * 4), "INVALID_ARGUMENT", "finite"),
        (lambda r: r.inputs[0].shape.__setitem__(0, 999), "INVALID_ARGUMENT", "at most 256"),
        (lambda r: r.parameters["mode"].MergeFrom(service_pb2.InferParameter(string_param="?")),
         "INVALID_ARGUMENT", "mode='?'"),
        (lambda r: r.outputs.add(name="scores"), "INVALID_ARGUMENT", "Outputs are logits"),
    ],
)  # fmt: skip
def test_a_bad_request_is_a_status_and_a_sentence(shared, change, code, words, caplog):
    client, _ = shared
    with pytest.raises(grpc.RpcError) as refused:
        client._client_stub.ModelInfer(changed(change))
    assert refused.value.code().name == code
    assert words in refused.value.details()
    assert not caplog.records


def test_what_is_not_answered_is_unimplemented_and_nothing_is_logged(client, caplog):
    assert code_of(client.get_inference_statistics)[0] == "UNIMPLEMENTED"
    assert code_of(client.infer, "digits", tensor(images(1)), compression_algorithm="gzip")[0] in (
        "UNIMPLEMENTED",
        "INTERNAL",
    )
    assert not caplog.records


def streamed(client, message, key=None, timeout=20):
    """Call an inference with what an iterator gives, perhaps nothing for long."""
    call = client._channel.stream_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        service_pb2.ModelInferRequest.SerializeToString,
        service_pb2.ModelInferResponse.FromString,
    )
    return call.future(message, timeout=timeout, metadata=(("x-api-key", key),) if key else None)


def test_a_call_without_a_message_is_refused(shared):
    with pytest.raises(grpc.RpcError, match="without a message"):
        streamed(shared[0], iter([])).result()


def test_a_long_message_stays_with_its_client_until_there_is_room_for_it():
    keys = {f"key-of-{name}-0123456789": Tenant(name=name) for name in ("one", "two")}
    one, two = keys
    room = largest_body(SPEC, 256, grpc_room.PER_NUMBER)
    with client_of(tenants=Tenants(keys), max_receiving=2 * room, slo=30) as (client, server):
        ended = threading.Event()

        def nothing():
            ended.wait(20)
            yield from ()

        stalled = streamed(client, nothing(), one)
        time.sleep(0.3)  # it has the only turn of its tenant
        waits = streamed(client, iter([changed(lambda request: None)]), one)
        assert ask(client, 2, headers={"x-api-key": two}).as_numpy("logits").argmax() == 2
        assert not waits.done()
        assert server.bodies.held == 0
        assert client.is_server_live(), "health reads nothing, so it waits for nobody"
        stalled.cancel()
        assert len(waits.result().raw_output_contents) == 1
        ended.set()


def tenants_of(*names):
    return Tenants({f"key-of-{name}-0123456789": Tenant(name=name) for name in names})


def asks_as(client, name, **options):
    return ask(client, 2, headers={"x-api-key": f"key-of-{name}-0123456789"}, **options)


def test_stalled_calls_do_not_keep_others_of_their_tenant_waiting():
    room = largest_body(SPEC, 256, grpc_room.PER_NUMBER)
    with (
        client_of(tenants=tenants_of("one", "two"), max_receiving=4 * room, slo=30) as (client, _),
        BareCaller(client.address) as stalled,
    ):
        for _ in range(20):  # two can be read at once
            stalled.call(key="key-of-one-0123456789")
        time.sleep(0.3)
        for name, most in (("two", 1), ("one", 8)):
            started = time.monotonic()
            assert asks_as(client, name).as_numpy("logits").argmax() == 2
            assert time.monotonic() - started < most


@pytest.mark.parametrize("reads", [True, False])
def test_calls_of_one_tenant_leave_room_for_others(monkeypatch, reads):
    """Calls that stall, and calls whose answers are not read."""
    monkeypatch.setattr(grpc_room, "MOST_CALLS", 20)
    message = changed(lambda request: None).SerializeToString()
    with (
        client_of(tenants=tenants_of("one", "two"), slo=30) as (client, server),
        BareCaller(client.address) as bare,
    ):
        for _ in range(40):
            bare.call(message if reads else None, "key-of-one-0123456789")
        time.sleep(0.5)
        code, words = code_of(asks_as, client, "one")
        assert (code, "calls under way" in words) == ("RESOURCE_EXHAUSTED", True)
        assert asks_as(client, "two").as_numpy("logits").argmax() == 2
        bare.socket.close()
        time.sleep(0.5)
        assert asks_as(client, "one").as_numpy("logits").argmax() == 2
        assert server.bodies.held == 0


def test_calls_without_a_key_are_limited_too(monkeypatch):
    monkeypatch.setattr(grpc_room, "MOST_CALLS", 20)
    live = "/inference.GRPCInferenceService/ServerLive"
    with client_of(tenants=tenants_of("one")) as (client, _), BareCaller(client.address) as bare:
        for _ in range(40):
            bare.call(b"", path=live)
        time.sleep(0.3)
        assert code_of(client.is_server_live)[0] == "RESOURCE_EXHAUSTED"
        assert asks_as(client, "one").as_numpy("logits").argmax() == 2


def test_connections_are_limited_and_those_that_send_nothing_are_closed():
    with client_of(header_timeout=2.0, slo=30) as (client, _), ExitStack() as opened:
        assert client.is_server_live()
        address = client.address.split(":")
        for _ in range(grpc_room.CONNECTIONS + 20):
            opened.enter_context(socket.create_connection(address, timeout=5))
        assert client.is_server_live(), "who was there before stays"
        with triton.InferenceServerClient(client.address, channel_args=OWN) as late:
            code_of(late.is_server_live)
            until = time.monotonic() + 10
            while time.monotonic() < until:
                with suppress(triton.InferenceServerException):
                    assert late.is_server_live()
                    break
                time.sleep(0.1)
            else:
                pytest.fail("idle connections stay open")


def test_keys_quotas_and_loading():
    with client_of(tenants=Tenants(KEYS)) as (client, server):
        assert client.is_server_live(), "health needs no key"
        assert code_of(ask, client, 1)[0] == "UNAUTHENTICATED"
        assert code_of(client.get_model_metadata, "digits")[0] == "UNAUTHENTICATED"
        shop = {"authorization": "Bearer shop-shop-shop-shop"}
        assert ask(client, 1, headers=shop).as_numpy("logits").argmax() == 1
        code, words = code_of(ask, client, 1, 1, 1, 1, headers=shop)
        assert code == "RESOURCE_EXHAUSTED"
        assert "quota is 3" in words
        assert code_of(client.load_model, "digits", headers=shop)[0] == "PERMISSION_DENIED"
        client.load_model("digits", headers={"x-api-key": "admin-admin-admin-"})
        assert server.find("digits").number == "2"
        assert b'status="401"' in server.metrics.text()


def test_the_deadline_is_grpcs_own_or_the_requests():
    engine = FakeEngine(per_pass=0.001)
    with client_of(engine, slo=30.0) as (client, server):
        engine.hold.clear()
        for options in ({"client_timeout": 0.3}, {"timeout": 300_000}):
            started = time.monotonic()
            assert code_of(ask, client, 1, **options)[0] == "DEADLINE_EXCEEDED"
            assert time.monotonic() - started < 3
        engine.hold.set()
        until = time.monotonic() + 5
        while server.queued() and time.monotonic() < until:
            time.sleep(0.01)
        assert server.queued() == 0
        assert ask(client, 2).as_numpy("logits").argmax() == 2


def test_a_client_that_leaves_costs_nothing():
    engine = FakeEngine()
    with client_of(engine, slo=30.0) as (client, server):
        engine.hold.clear()
        done = threading.Event()
        before, until = len(engine.calls), time.monotonic() + 5
        client.async_infer("digits", tensor(images(1)), lambda result, error: done.set())
        while len(engine.calls) == before and time.monotonic() < until:
            time.sleep(0.01)
        left = client.async_infer("digits", tensor(images(2)), lambda result, error: None)
        while server.queued() < 1 and time.monotonic() < until:
            time.sleep(0.01)
        left.cancel()
        while server.queued() and time.monotonic() < until:
            time.sleep(0.01)
        assert server.queued() == 0, "it still waits"
        engine.hold.set()
        assert done.wait(5)
        assert all(2 not in inputs for _, inputs in engine.calls), "it ran for nobody"


def test_limits_of_the_server_hold():
    with client_of(max_body=4096, body_timeout=0.2) as (client, _):
        code, _words = code_of(client.infer, "digits", tensor(np.zeros((300, 1, 2, 2), np.float32)))
        assert code == "RESOURCE_EXHAUSTED"
        asked = threading.Event()

        def never():
            asked.wait(5)
            yield from ()

        with pytest.raises(grpc.RpcError, match="took over 0.2 s"):
            streamed(client, never()).result()
        asked.set()


def test_messages_that_take_far_more_than_their_bytes_are_not_parsed(monkeypatch):
    monkeypatch.setattr(grpc_room, "largest_body", lambda *_: 2**25)
    many = b"\x2a\x00" * 1_000_000  # tensors
    ones = b"\x0a\x00" * 500_000  # parameters of a tensor
    few, typed = service_pb2.ModelInferRequest(), service_pb2.ModelInferRequest()
    for request, count in ((few, 9), (typed, 9_000_000)):
        request.model_name = "digits"
        given = request.inputs.add(name="input", datatype="INT64", shape=[2])
        given.contents.int64_contents.extend([1] * count)
    with client_of() as (client, _):
        channel = grpc.insecure_channel(client.address, OWN)

        def call(content, name="ModelInfer"):
            called = channel.unary_unary(f"/{grpc_room.NAME}/{name}")
            with pytest.raises(grpc.RpcError) as caught:
                called(content)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            return caught.value.details()

        assert "over 100 parts" in call(many)
        assert "over 100 parts" in call(b"\x28\x01" * 100_000)
        assert "cut short" in call(b"\xff" * 100_000)
        assert "beside raw contents" in call(typed.SerializeToString())
        assert "9 numbers came" in call(few.SerializeToString())
        for name in ("ModelReady", "RepositoryIndex", "ModelMetadata"):
            assert "at most 65536 bytes" in call(ones, name)


def test_an_error_inside_the_server_says_nothing_else(shared, monkeypatch):
    client, server = shared

    async def fail(*_, **__):
        raise SystemError("a secret")

    monkeypatch.setattr(server, "answer", fail)
    code, words = code_of(ask, client, 1)
    assert code == "INTERNAL"
    assert "secret" not in words


def test_a_server_that_shuts_down_is_unavailable():
    with client_of() as (client, server):
        server.is_draining = True
        assert code_of(ask, client, 1)[0] == "UNAVAILABLE"
        assert not client.is_server_ready()
        assert not client.is_model_ready("digits")


def test_every_status_has_a_code(shared):
    known = {400, 401, 403, 404, 408, 413, 429, 499, 500, 503, 504}
    assert set(grpc_room.CODES) == known
    assert RequestError(418, "").status not in known
    handled = {
        name for name in dir(service_pb2_grpc.GRPCInferenceServiceServicer) if name[0] != "_"
    }
    handlers = grpc_room._handlers(grpc_room.Service(shared[1]))
    assert {name.rpartition("/")[2] for name in handlers._method_handlers} <= handled


def test_a_port_that_is_taken_is_named():
    async def main(port):
        await grpc_room.start_grpc(server, "127.0.0.1", port)

    with serving() as (address, server), pytest.raises(OSError, match="another --grpc-port"):
        asyncio.run(main(int(address.rpartition(":")[2])))


def test_it_runs_on_uvloop():
    uvloop = pytest.importorskip("uvloop")
    with client_of(loop_factory=uvloop.new_event_loop) as (client, _):
        assert ask(client, 2).as_numpy("logits").argmax() == 2


def mutated(draw):
    """Make the bytes of a valid request, and change some of them or one of its fields."""
    request = changed(lambda request: request.parameters["mode"].SetInParent())
    request.parameters["mode"].string_param = "slow"
    request.outputs.add(name="label")
    given = request.inputs[0]
    if draw.random() < 0.5:
        draw.choice(
            (
                lambda: given.shape.__setitem__(draw.randrange(4), draw.choice((-1, 0, 2**62))),
                lambda: setattr(given, "datatype", draw.choice(("", "BOOL", "FP16", "INT64"))),
                lambda: setattr(request, "model_name", "\u00e9" * draw.randrange(5000)),
                lambda: request.raw_input_contents.__setitem__(0, draw.randbytes(16)),
                lambda: request.raw_input_contents.append(draw.randbytes(3)),
                lambda: given.contents.fp32_contents.extend([draw.random()] * 4),
                lambda: setattr(request.parameters["timeout"], "int64_param", -(2**63)),
                lambda: setattr(request.parameters["mode"], "double_param", float("nan")),
                lambda: setattr(request.parameters["priority"], "uint64_param", 2**64 - 1),
                lambda: request.outputs.extend([request.outputs[0]] * 300),
            )
        )()
    content = bytearray(request.SerializeToString())
    for _ in range(draw.choice((0, 1, 3, 20))):
        content[draw.randrange(len(content))] = draw.randrange(256)
    return bytes(content[: draw.randrange(len(content))] if draw.random() < 0.1 else content)


@pytest.mark.parametrize("count", [200, pytest.param(5000, marks=pytest.mark.slow)])
def test_mutated_messages_are_answered_or_refused_in_a_sentence(shared, count, caplog):
    client, _ = shared
    call = client._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    draw, codes, said = random.Random(count), Counter(), []
    for _ in range(count):
        content = mutated(draw)
        try:
            call(content, timeout=10)
            codes["OK"] += 1
        except grpc.RpcError as refused:
            codes[refused.code().name] += 1
            said.append(refused.details())
    assert set(codes) <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "DEADLINE_EXCEEDED"}, codes
    assert min(codes["OK"], codes["INVALID_ARGUMENT"]) > count / 20, codes
    assert all(10 < len(words) < 600 for words in said)
    assert not caplog.records
    assert ask(client, 2).as_numpy("logits").argmax() == 2
