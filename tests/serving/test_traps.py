"""What other servers fell into, one test or more for each."""

import asyncio
import gc
import threading
import time
import weakref
from dataclasses import replace

import httpx
import numpy as np
import pytest
import torch

from mimonets import Engine, MIMOFormer, MIMOFormerConfig
from mimonets._inputs import InputSpec
from mimonets.serving.batcher import Batcher
from mimonets.serving.errors import RequestError
from mimonets.serving.jobs import QueuedInput
from mimonets.serving.metrics import Metrics
from mimonets.serving.model_queue import InferenceRequest, ModelQueue
from mimonets.serving.networks import PADDING, Network, superposed
from mimonets.serving.operating_points import ServiceTime
from mimonets.serving.policy import Policy
from mimonets.serving.request_options import RequestOptions
from mimonets.serving.tenants import EVERYONE, Tenant, Tenants
from serving.fakes import (
    ACCURACIES,
    SPEC,
    FakeEngine,
    client_of,
    images,
    listening,
    make_point,
    make_server,
    tensor,
)

INFER = "/v2/models/digits/infer"
SMALL = {
    "depth": 1,
    "heads": 2,
    "head_dim": 8,
    "dim": 16,
    "hidden_dim": 16,
    "vocab_size": 10,
    "max_length": 8,
    "num_features": 8,
}


def once(call, **settings):
    async def main():
        server = make_server(**settings)
        async with client_of(server) as client:
            return await asyncio.wait_for(call(client, server), 30)

    return asyncio.run(main())


async def until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.002)


def ask(client, *pixels, **parameters):
    return asyncio.ensure_future(client.post(INFER, json=tensor(images(*pixels), **parameters)))


def label(response):
    (output,) = response.json()["outputs"]
    return np.reshape(output["data"], output["shape"]).argmax(axis=1).tolist()


# 1. A cancelled future kills the batch loop.


def test_1_a_cancelled_future_does_not_stop_the_thread():
    async def call(client, server):
        engine.hold.clear()
        first, second = ask(client, 1), ask(client, 2)
        await until(lambda: len(engine.calls) > warm)
        first.cancel()
        second.cancel()
        await asyncio.sleep(0.01)
        engine.hold.set()
        response = await ask(client, 2)
        assert label(response) == [2]
        assert server.worker.errors == 0
        assert server.batcher.is_empty()

    engine = FakeEngine()
    warm = 0

    async def main():
        nonlocal warm
        server = make_server(engine)
        async with client_of(server) as client:
            warm = len(engine.calls)
            await asyncio.wait_for(call(client, server), 30)

    asyncio.run(main())


def test_1_an_error_in_the_bookkeeping_does_not_stop_the_thread(monkeypatch):
    async def call(client, server):
        server.metrics.job = None
        server.worker.on_job = None  # every job now ends with an exception
        assert label(await ask(client, 1)) == [1]
        await until(lambda: server.worker.errors > 0)
        assert label(await ask(client, 2)) == [2]
        assert (await client.get("/v2/health/live")).status_code == 200

    once(call)


# 2. One bad input hangs or spoils its batch.


@pytest.mark.parametrize(
    ("how", "status", "words"), [("crash_on", 500, "failed on this"), ("nan_on", 400, "finite")]
)
def test_2_an_input_that_breaks_the_network_harms_only_itself(how, status, words):
    async def call(client, server):
        engine.hold.clear()
        blocker = ask(client, 0)
        await until(lambda: server.worker._running is not None)
        group = [ask(client, pixel, superpose=True) for pixel in (1, 5, 2, 0)]
        await until(lambda: server.queued() == 4)
        setattr(engine, how, 5)
        engine.hold.set()
        responses = await asyncio.gather(*group)
        assert [response.status_code for response in responses] == [200, status, 200, 200]
        assert [label(responses[number]) for number in (0, 2, 3)] == [[1], [2], [0]]
        assert words in responses[1].json()["error"]
        assert (await blocker).status_code == 200
        assert server.batcher.is_empty()

    engine = FakeEngine()
    once(call, engine=engine)


# 3. Timeouts that cover only the queue and are checked late.


def test_3_a_timeout_covers_the_whole_request_and_is_on_time():
    async def call(client, server):
        engine.hold.clear()  # the job hangs: no check between jobs would ever run
        started = time.monotonic()
        response = await ask(client, 1, timeout=150_000)
        assert response.status_code == 504
        assert 0.14 < time.monotonic() - started < 0.6
        engine.hold.set()

    engine = FakeEngine()
    once(call, engine=engine)


def test_3_a_timeout_starts_with_the_first_bytes_of_a_request():
    async def call(client, server):
        async def body():
            yield content[:20]
            await asyncio.sleep(0.1)
            yield content[20:]

        before = len(engine.calls)
        response = await client.post(INFER, content=body())
        assert response.status_code == 504
        assert "before all of the request was there" in response.json()["error"]
        assert len(engine.calls) == before

    request = tensor(images(1), timeout=50_000)
    content = httpx.Request("POST", "http://test", json=request).content
    engine = FakeEngine()
    once(call, engine=engine)


# 4. Work for clients that left.


def test_4_a_client_that_left_costs_nothing():
    engine = FakeEngine(per_pass=0.01)
    server = make_server(engine)
    with listening(server) as address:
        engine.hold.clear()

        async def main():
            async with httpx.AsyncClient(base_url=f"http://{address}") as client:
                first = ask(client, 1)
                await until(lambda: server.worker._running is not None)
                leaving = [ask(client, 2) for _ in range(5)]
                await until(lambda: server.queued() == 5)
                for task in leaving:
                    task.cancel()
                await until(lambda: server.queued() == 0)
                engine.hold.set()
                assert label(await first) == [1]

        before = len(engine.calls)
        asyncio.run(main())
        assert len(engine.calls) == before + 1, "what was cancelled was computed"


# 5. A full queue that blocks or answers 500.


def test_5_overload_is_answered_429_at_once_and_never_flips_ready():
    async def call(client, server):
        engine.hold.clear()
        first = ask(client, 1)
        await until(lambda: server.worker._running is not None)
        asked = [ask(client, 1, timeout=400_000) for _ in range(130)]  # 80 would be in time
        # The engine is held, so nothing but a refusal can come back before the timers.
        done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert all(task.result().status_code == 429 for task in done)
        assert all(int(task.result().headers["retry-after"]) >= 1 for task in done)
        assert (await client.get("/v2/health/ready")).status_code == 200
        engine.hold.set()
        codes = {response.status_code for response in await asyncio.gather(first, *waiting)}
        assert codes <= {200, 429, 504}

    engine = FakeEngine(per_pass=0.02)
    once(call, engine=engine)


# 6. Several meanings of latency, requests counted instead of inputs, newest first.


def test_6_the_earliest_deadline_runs_first_and_inputs_are_counted():
    async def call(client, server):
        engine.hold.clear()
        blocker = ask(client, 0)
        await until(lambda: server.worker._running is not None)
        before = len(engine.calls)
        relaxed = ask(client, 1, timeout=5_000_000, deterministic=True)
        await until(lambda: server.queued() == 1)
        urgent = ask(client, 2, timeout=1_000_000, deterministic=True)
        await until(lambda: server.queued() == 2)
        refused = await ask(client, *[1] * 200, timeout=1_000_000)  # 50 passes of 0.02 s
        assert refused.status_code == 429
        engine.hold.set()
        await asyncio.gather(blocker, relaxed, urgent)
        order = [int(inputs[0, 0, 0, 0]) for _, inputs in engine.calls[before:]]
        assert order == [2, 1]

    engine = FakeEngine(per_pass=0.02)
    once(call, engine=engine, slo=2.0)


# 7. Healthy but dead; not ready answered as 400.


def test_7_a_stuck_network_is_not_live():
    async def call(client, server):
        engine.hold.clear()
        task = ask(client, 1, timeout=100_000)
        await until(lambda: server.worker._running is not None)
        await until(lambda: not server.worker.is_live(limit=0.2))
        server.worker._beat -= 100  # as if it had been stuck for longer
        response = await client.get("/v2/health/live")
        assert response.status_code == 503
        engine.hold.set()
        await task

    engine = FakeEngine()
    once(call, engine=engine)


def test_7_a_dead_thread_is_not_live():
    async def call(client, server):
        server.worker.stop(5)
        return [
            (await client.get(f"/v2/health/{which}")).status_code for which in ("live", "ready")
        ]

    assert once(call) == [503, 503]


def test_7_a_graph_that_takes_long_to_open_delays_nobody_and_is_no_reason_to_be_killed():
    async def main():
        slow = FakeEngine()
        engines = [FakeEngine(), slow]
        models = {"digits": lambda: superposed("digits", engines.pop(0), ACCURACIES)}
        server = make_server(models=models)
        async with client_of(server) as client:
            slow.hold.clear()  # as if it were compiled for a long time
            loading = asyncio.create_task(server.load("digits"))
            await until(lambda: slow.calls)
            assert label(await ask(client, 2)) == [2]
            server.worker._beat -= 100
            assert (await client.get("/v2/health/live")).status_code == 200
            assert not loading.done()
            slow.hold.set()
            assert (await loading).number == "2"

    asyncio.run(asyncio.wait_for(main(), 30))


def test_7_while_it_loads_the_server_is_live_but_answers_503():
    async def main():
        hold = threading.Event()

        def loader():
            hold.wait(10)
            return superposed("digits", FakeEngine(), ACCURACIES)

        server = make_server(models={"digits": loader})
        async with client_of(server, wait=False) as client:
            codes = [
                (await client.get("/v2/health/live")).status_code,
                (await client.get("/v2/health/ready")).status_code,
                (await client.post(INFER, json=tensor(images(1)))).status_code,
            ]
            hold.set()
            await until(lambda: server.is_ready)
            codes.append((await client.post(INFER, json=tensor(images(1)))).status_code)
            return codes

    assert asyncio.run(main()) == [200, 503, 503, 200]


# 8. Reload gaps.

ADMIN = Tenants(
    {
        "admin-admin-admin-": Tenant(name="boss", admin=True, shares=True),
        "plain-plain-plain-": Tenant(name="user", shares=True),
    }
)


def test_8_reload_leaves_no_gap_and_no_request_unanswered():
    async def main():
        engines = []

        def loader():
            engines.append(FakeEngine(per_pass=0.001))
            return superposed("digits", engines[-1], ACCURACIES)

        server = make_server(models={"digits": loader}, tenants=ADMIN)
        async with client_of(server) as client:
            client.headers["x-api-key"] = "plain-plain-plain-"
            answered = [[] for _ in range(4)]  # versions that each of four clients met

            async def keep_asking(versions):
                while versions.count("2") < 5:
                    response = await client.post(INFER, json=tensor(images(2)))
                    assert response.status_code == 200
                    assert label(response) == [2]
                    versions.append(response.json()["model_version"])

            async with asyncio.TaskGroup() as group:
                for versions in answered:
                    group.create_task(keep_asking(versions))
                while not all(answered):
                    await asyncio.sleep(0.001)
                forbidden = await client.post("/v2/repository/models/digits/load")
                assert forbidden.status_code == 403
                response = await client.post(
                    "/v2/repository/models/digits/load",
                    headers={"x-api-key": "admin-admin-admin-"},
                )
                assert response.json() == {"name": "digits", "version": "2"}
            for versions in answered:
                assert versions == sorted(versions), "nobody goes back to the old version"
            assert len(server.batcher.queues) == 1, "the old queue is gone"

    asyncio.run(asyncio.wait_for(main(), 60))


def test_8_a_request_whose_body_still_comes_is_answered_by_the_new_version():
    async def call(client, server):
        loaded = asyncio.Event()

        async def body():
            yield content[:20]
            await loaded.wait()
            yield content[20:]

        asked = [client.post(INFER, content=body()) for _ in range(3)]
        asked.append(client.post("/v2/models/digits/versions/1/infer", content=body()))
        answers = asyncio.gather(*asked)
        await asyncio.sleep(0.05)
        await server.load("digits")
        loaded.set()
        *found, gone = await answers
        assert [one.status_code for one in found] == [200] * 3
        assert {one.json()["model_version"] for one in found} == {"2"}
        assert gone.status_code == 404
        assert server.batcher.bytes.held == 0
        assert set(server.batcher.inputs.by_tenant.values()) == {0}

    content = httpx.Request("POST", "http://test", json=tensor(images(1))).content
    once(call)


def test_8_a_request_that_fits_only_the_old_version_is_503():
    async def call(client, server):
        old = server.find("digits")
        specs.append(replace(SPEC, shape=(1, 4, 4)))
        await server.load("digits")
        with pytest.raises(RequestError, match="takes other inputs: ask again") as caught:
            await server.answer(old, images(1), RequestOptions(), EVERYONE)
        assert caught.value.status == 503

    specs = [SPEC]
    once(call, models={"digits": lambda: superposed("digits", FakeEngine(spec=specs[-1]))})


def test_8_inputs_of_a_version_that_is_gone_do_not_count_against_their_tenant():
    batcher = Batcher(quotas={"shop": 1})
    gone = ModelQueue("digits", Policy([make_point(1, ServiceTime())]))  # not in batcher.queues
    one = InferenceRequest(gone, images(1), 1, 0.0, 1.0, tenant="shop", size=16)
    batcher.offer(one, 0.0)
    batcher.end(one, TimeoutError("late"))
    assert (batcher.inputs.by_tenant["shop"], batcher.bytes.held) == (0, 0)


def test_8_old_versions_leave_memory_without_the_garbage_collector():
    async def call(client, server):
        for _ in range(3):
            assert (await ask(client, 1)).status_code == 200
            await server.load("digits")
        await asyncio.sleep(0.01)
        return sum(network() is not None for network in loaded)

    def load():
        network = superposed("digits", FakeEngine(), ACCURACIES)
        loaded.append(weakref.ref(network))
        return network

    loaded = []
    gc.disable()  # as good as gc.freeze() for what was loaded
    try:
        assert once(call, models={"digits": load}) == 1
    finally:
        gc.enable()
    assert len(loaded) == 4


def test_8_a_version_that_does_not_load_leaves_the_old_one():
    async def main():
        loads = []

        def loader():
            loads.append(1)
            if len(loads) > 1:
                raise ValueError("the file was cut short")
            return superposed("digits", FakeEngine(), ACCURACIES)

        server = make_server(models={"digits": loader}, tenants=ADMIN)
        async with client_of(server) as client:
            client.headers["x-api-key"] = "admin-admin-admin-"
            response = await client.post("/v2/repository/models/digits/load")
            assert response.status_code == 400
            assert "cut short" in response.json()["error"]
            after = await client.post(INFER, json=tensor(images(1)))
            assert after.json()["model_version"] == "1"

    asyncio.run(main())


# 9. Autoscaler oscillation: scale on rate. What there is to scale by:


def test_9_the_offered_rate_is_reported_even_when_requests_are_refused():
    async def call(client, server):
        for _ in range(20):
            await ask(client, *[1] * 200, timeout=1000)
        assert server.metrics.window(2.0)["offered"] == pytest.approx(10)
        assert "mimonets_shed_total" in (await client.get("/metrics")).text

    once(call, engine=FakeEngine(per_pass=0.002))


# 10. Thread explosion, and an open management interface.


def test_10_one_thread_runs_the_network_however_many_ask():
    async def call(client, server):
        engine.threads.clear()  # graphs are opened on another thread, before requests come
        before = threading.active_count()
        responses = await asyncio.gather(*(ask(client, 1) for _ in range(100)))
        assert all(response.status_code == 200 for response in responses)
        assert len(engine.threads) == 1
        assert threading.active_count() <= before + 2

    engine = FakeEngine()
    once(call, engine=engine)


def test_10_nobody_may_manage_an_open_server():
    async def call(client, server):
        return await client.post("/v2/repository/models/digits/load")

    assert once(call).status_code == 403


# 11. Answers that depend on batch size.


def test_11_a_deterministic_answer_does_not_depend_on_who_else_asks():
    async def call(client, server):
        alone = (await ask(client, 1, deterministic=True)).json()["outputs"][0]["data"]
        engine.hold.clear()
        blocker = ask(client, 0)
        await until(lambda: server.worker._running is not None)
        crowd = [ask(client, 1) for _ in range(7)]
        exact = [ask(client, 1, deterministic=True) for _ in range(3)]
        await until(lambda: server.queued() == 10)
        engine.hold.set()
        found = [(await task).json()["outputs"][0]["data"] for task in exact]
        others = [(await task).json()["outputs"][0]["data"] for task in crowd]
        await blocker
        assert found == [alone] * 3
        assert any(other != alone for other in others), "the crowd did share batches"

    engine = FakeEngine()
    engine.by_group = True
    once(call, engine=engine)


# Beyond the eleven.


@pytest.mark.parametrize(("by_group", "slow"), [(False, "bits"), (True, "rounding")])
def test_11_metadata_say_which_answers_depend_on_neighbours(by_group, slow):
    async def call(client, server):
        return (await client.get("/v2/models/digits")).json()["parameters"]["modes"]

    engine = FakeEngine()
    engine.by_group = by_group  # answers depend on the size of the batch
    found = {one["active_streams"]: one["independent"] for one in once(call, engine=engine)}
    assert found == {1: slow, 2: "no", 4: "no"}


@pytest.mark.parametrize("backend", ["onnxruntime", "torch"])
def test_11_promises_hold_bit_for_bit_in_a_real_engine(exported, backend):
    """Slow answers where the point says bits, and deterministic ones always."""
    network = superposed("digits", Engine(exported, backend, 1))
    inputs = np.random.default_rng(1).standard_normal((17, 1, 8, 8), dtype=np.float32)

    async def outputs(server, options, rows):
        request = await server.answer(server.find("digits"), rows, options, EVERYONE)
        return np.stack([answer.output for answer in request.answers])

    async def main():
        server = make_server(models={"digits": lambda: network}, slo=60.0)
        await server.start()
        slowest = server.find("digits").queue.policy.points[0]
        found = {}
        for name, options in (
            ("deterministic", RequestOptions(deterministic=True)),
            ("slow", RequestOptions(speed="slow")),
        ):
            alone = [await outputs(server, options, inputs[row : row + 1]) for row in range(17)]
            beside = [outputs(server, RequestOptions(), 2 * inputs) for _ in range(3)]
            together, *_ = await asyncio.gather(outputs(server, options, inputs), *beside)
            found[name] = np.array_equal(together, np.concatenate(alone))
            np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-3, atol=1e-4)
        await server.stop(timeout=5)
        return slowest, found

    slowest, found = asyncio.run(main())
    assert slowest.inputs_per_pass == 1
    assert found["deterministic"]
    assert found["slow"] or slowest.independent == "rounding"


def test_tenants_never_share_a_call_of_one_group():
    keys = Tenants(
        {f"key-of-{name}-key-of-{name}": Tenant(name=name, shares=name in "cd") for name in "abcd"}
    )

    async def call(client, server):
        async def one(name, pixel):
            return await client.post(
                INFER,
                json=tensor(images(pixel), superpose=True),
                headers={"x-api-key": f"key-of-{name}-key-of-{name}"},
            )

        engine.hold.clear()
        blocker = asyncio.ensure_future(one("a", 0))
        await until(lambda: server.worker._running is not None)
        before = len(engine.calls)
        pixels = {"a": 3, "b": 4, "c": 5, "d": 6}
        tasks = [asyncio.ensure_future(one(n, p)) for n, p in pixels.items() for _ in range(3)]
        await until(lambda: server.queued() == 12)
        engine.hold.set()
        await asyncio.gather(blocker, *tasks)
        mixed = set()
        for active, inputs in engine.calls[before:]:
            for start in range(0, len(inputs), active):
                group = {int(value) for value in inputs[start : start + active, 0, 0, 0]}
                if 3 in group or 4 in group:
                    assert len(group) == 1, "a tenant who did not agree shared a pass"
                mixed.add(frozenset(group))
        assert frozenset({5, 6}) in mixed, "tenants who agreed do share"

    engine = FakeEngine()
    once(call, engine=engine, tenants=keys)


def test_a_doubtful_answer_runs_again_when_the_server_would_idle():
    class Doubtful(FakeEngine):
        """Sure when alone, doubtful in company."""

        def __call__(self, inputs, active_streams=None):
            return super().__call__(inputs, active_streams) / (1 if active_streams == 1 else 10)

    engine = Doubtful(per_pass=0.005)
    models = {"digits": lambda: superposed("digits", engine, ACCURACIES, {1: 0.9, 2: 0.9, 4: 0.9})}

    async def call(client, server):
        fast = await ask(client, 0, 1, 2, 0, superpose=True)
        again = await ask(client, 0, 1, 2, 0, superpose=True, cascade=True)
        assert not fast.json()["parameters"]["cascaded"]
        assert fast.json()["parameters"]["confidence"] < 0.9
        assert again.json()["parameters"]["cascaded"]
        assert again.json()["parameters"]["confidence"] > 0.9
        assert label(again) == [0, 1, 2, 0]
        assert 'cascaded_total{model="digits"}' in (await client.get("/metrics")).text

    once(call, models=models)


def test_what_is_queued_is_answered_before_the_server_stops():
    async def main():
        engine = FakeEngine(per_pass=0.01)
        server = make_server(engine)
        async with client_of(server, stop=False) as client:
            tasks = [ask(client, 1) for _ in range(10)]
            await until(lambda: server.queued() > 0)
            stopping = asyncio.create_task(server.stop(timeout=5))
            await asyncio.sleep(0)
            late = await ask(client, 1)
            assert late.status_code == 503
            assert [(await task).status_code for task in tasks] == [200] * 10
            await stopping
            assert not server.worker._thread.is_alive()

    asyncio.run(main())


def test_a_loop_that_delivers_late_is_noticed():
    async def call(client, server):
        before = server.batcher.overhead
        for _ in range(30):
            task = ask(client, 1)
            await until(lambda task=task: server.worker._running is not None or task.done())
            time.sleep(0.02)  # the loop does something else meanwhile
            await task
        assert server.batcher.overhead > 2 * before

    once(call, engine=FakeEngine(per_pass=0.005))


def test_several_models_are_served_side_by_side():
    engines = {name: FakeEngine(per_pass=0.001) for name in ("one", "two")}
    models = {
        name: (lambda name=name, engine=engine: superposed(name, engine, ACCURACIES))
        for name, engine in engines.items()
    }

    async def call(client, server):
        tasks = [
            client.post(f"/v2/models/{name}/infer", json=tensor(images(pixel)))
            for name in engines
            for pixel in (0, 1, 2)
        ]
        responses = await asyncio.gather(*tasks)
        assert [label(response) for response in responses] == [[0], [1], [2]] * 2
        assert [r.json()["model_name"] for r in responses] == ["one"] * 3 + ["two"] * 3

    once(call, models=models)


def test_a_client_that_sends_its_body_slowly_delays_nobody():
    server = make_server(FakeEngine(), body_timeout=0.3)
    with listening(server) as address:
        import socket

        host, port = address.split(":")
        slow = socket.create_connection((host, int(port)))
        start = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{{"
        slow.sendall(start.encode())
        started = time.monotonic()
        response = httpx.post(f"http://{address}{INFER}", json=tensor(images(1)))
        assert response.status_code == 200
        assert time.monotonic() - started < 1.0
        slow.settimeout(5)
        assert b"408" in slow.recv(100)
        slow.close()


def test_a_short_group_runs_at_a_point_that_is_served():
    async def call(client, server):
        response = await ask(client, 0, 1, 2, superpose=True)
        assert label(response) == [0, 1, 2]
        assert response.json()["parameters"]["active_streams"] == 4
        active, inputs = engine.calls[-1]
        assert active == 4
        assert inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 0], "a copy fills the group"

    engine = FakeEngine()
    network = lambda: superposed("digits", engine, ACCURACIES, points=(1, 4))  # noqa: E731
    once(call, models={"digits": network})


def test_many_inputs_that_ask_for_it_share_a_pass_on_an_idle_server():
    time = ServiceTime(per_pass=0.01)
    policy = Policy([make_point(1, time, 0.9), make_point(16, time, 0.8)])
    queue = [QueuedInput(0.0, 10.0, fastest=1, slowest=1, number=number) for number in range(32)]
    job = policy.next_job(queue, now=0.0)
    assert [len(group.inputs) for group in job.groups] == [16, 16]


@pytest.mark.parametrize(("grid", "served"), [((1, 2), {1: "2"}), ((2, 2), {1: "2", 2: "4"})])
def test_pairs_are_served_in_one_mode_for_each_number_of_pairs(grid, served):
    torch.manual_seed(0)
    config = MIMOFormerConfig(**SMALL, num_classes=3, head="pair", grid=grid)
    network = superposed("pairs", Engine(MIMOFormer(config).eval(), "torch", 1))
    assert {point.inputs_per_pass: point.name.split()[0] for point in network.points} == served
    pairs = network.example(3)
    *_, points = network.measure(time.perf_counter, passes=(1,), repeats=1)
    assert points[-1].answer(pairs).shape == (3, 3)


def test_a_network_that_answers_every_token_is_served_with_values():
    config = MIMOFormerConfig(**SMALL, num_classes=10, head="next_token", causal=True, grid=(2, 1))
    network = superposed("words", Engine(MIMOFormer(config).eval(), "torch", 1))
    network.run_every_graph()
    assert network.input_spec.answers == "values"
    assert network.answer_shapes == {"values": (8, 10)}


def test_the_window_looks_at_the_last_seconds_only():
    now = 0.0
    metrics = Metrics(lambda: 0, lambda: now)
    for now in (1.0, 2.0, 98.5, 99.0):
        metrics.offered(now)
        metrics.recent.append((now, now / 1000, 1))
    metrics.recent.appendleft(None)  # nobody looks that far back
    now = 100.0
    assert metrics.window()["offered"] == 1.0
    assert metrics.window()["p50_ms"] == pytest.approx(98.75)


def test_graphs_for_short_sequences_run_before_anybody_waits():
    seen = []

    def run(inputs):
        seen.append((inputs == PADDING).any())
        return np.zeros((len(inputs), 2))

    spec = InputSpec(kind="tokens", shape=(6,), vocab_size=5)
    for takes_short, wanted in ((True, [True, False]), (False, [False])):
        seen.clear()
        point = make_point(2, ServiceTime(), run=run)
        Network("text", spec, [point], takes_short=takes_short).run_every_graph()
        assert seen == wanted
