"""Clients that stall, half-close, pipeline, or are pages of another site."""

import asyncio
import json
import logging
import os
import resource
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from fastapi import Response

from mimonets.cli.main import main
from mimonets.cli.open_models import name_and_folders
from mimonets.serving import connections
from mimonets.serving.app import make_app
from mimonets.serving.run import listen
from mimonets.serving.site import add_site
from mimonets.serving.tenants import Tenant, Tenants
from serving.fakes import FakeEngine, client_of, images, listening, make_server, tensor

INFER = "/v2/models/digits/infer"
BODY = json.dumps(tensor(images(1))).encode()
HEAD = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
REQUEST = HEAD % (INFER.encode(), len(BODY)) + BODY


def connect(address):
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def talk(address, data, *, close=False):
    """Send bytes; returns all that comes back."""
    with connect(address) as client:
        client.sendall(data)
        if close:
            client.shutdown(socket.SHUT_WR)
        return read_all(client)


def read_all(client):
    found = b""
    while part := client.recv(65536):
        found += part
    return found


def until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def test_headers_that_do_not_come_end_the_connection_with_a_line_in_the_log(caplog):
    connections.Connection._warned_at = -1.0
    with (
        caplog.at_level(logging.WARNING, "mimonets.serving.connections"),
        listening(make_server(header_timeout=0.1)) as address,
        connect(address) as nothing,
        connect(address) as slow,
        connect(address) as second,
    ):
        slow.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        second.sendall(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v2 HTTP/1.1\r\nHo")
        started = time.monotonic()
        for client in (nothing, slow):
            assert client.recv(1) == b""
        assert time.monotonic() - started < 5
        assert second.recv(15) == b"HTTP/1.1 200 OK", "what was sent whole is answered"
    assert "no whole request in 0.1 s" in caplog.text


def test_endless_headers_are_refused():
    with listening(make_server()) as address, connect(address) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        found = b""
        client.settimeout(0.01)
        for _ in range(2000):
            try:
                client.sendall(b"x-more: " + b"x" * 1000 + b"\r\n")
                found += client.recv(1000)
            except TimeoutError:
                continue
            except (ConnectionResetError, BrokenPipeError):
                break
            if b"400" in found:
                break
        assert found.startswith(b"HTTP/1.1 400"), found


CHUNKED = b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "again"),
    [
        (b"1\r\n{\r\n0\r\n", b"a:\r\n"),
        (b"1\r\n{\r\n0\r\na: ", b"y"),
        (b"1;", b"x"),
        (b"", b"1\r\n{\r\n"),
    ],
    ids=["trailers", "one trailer", "extension", "tiny chunks"],
)
def test_what_surrounds_a_body_is_limited(begin, again):
    with listening(make_server()) as address, connect(address) as client:
        client.sendall(CHUNKED % INFER.encode() + begin)
        sent, block = 0, again * (20_000 // len(again))
        with suppress(OSError):
            while sent < 20_000_000:
                client.sendall(block)
                sent += len(block)
        assert sent < 20_000_000, "it is still read"


def test_bodies_in_small_pieces_are_read():
    with listening(make_server()) as address:
        for size in (1, 20, len(BODY)):
            pieces = (BODY[start : start + size] for start in range(0, len(BODY), size))
            body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
            end = b"0\r\nlast: trailer\r\n\r\n"
            found = talk(address, CHUNKED % INFER.encode() + body + end, close=True)
            assert b" 200 OK" in found


def test_thousands_of_headers_are_refused():
    with listening(make_server()) as address:
        found = talk(address, b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * 5000)
        assert b" 400 Bad Request" in found
        found = talk(address, REQUEST.replace(b"\r\n", b"\r\n" + b"a:\r\n" * 90, 1), close=True)
        assert b" 200 OK" in found


def test_over_the_limit_the_client_that_sent_nothing_longest_makes_room(caplog):
    connections.Connection._warned_at = -1.0
    engine = FakeEngine()
    server = make_server(engine, max_connections=3)
    with (
        caplog.at_level(logging.WARNING, "mimonets.serving.connections"),
        listening(server) as address,
        connect(address) as answered,
        connect(address) as stalled,
        connect(address) as slow,
    ):
        engine.hold.clear()
        answered.sendall(REQUEST)
        until(lambda: server.worker._running is not None)
        stalled.sendall(REQUEST[:-5])
        time.sleep(0.05)
        slow.sendall(b"GET /")
        for _ in range(3):
            found = httpx.get(f"http://{address}/v2/health/live", headers={"connection": "close"})
            assert found.status_code == 200
        engine.hold.set()
        assert answered.recv(15) == b"HTTP/1.1 200 OK"
    assert "3 connections are open" in caplog.text


def test_one_tenant_cannot_hold_all_connections():
    keys = {f"key-of-{name}-0123456789": Tenant(name=name) for name in ("good", "bad")}
    engine = FakeEngine()
    server = make_server(engine, tenants=Tenants(keys), max_connections=20)
    app = make_app(server)
    add_site(app, server)
    lines = b"Host: localhost\r\nX-API-Key: key-of-%s-0123456789\r\n"
    page = b"GET /v1/events HTTP/1.1\r\n" + lines % b"bad" + b"\r\n"
    ask = b"POST %s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s"
    patient = json.dumps({**tensor(images(1)), "parameters": {"timeout": 20_000_000}}).encode()
    wait = ask % (INFER.encode(), lines % b"bad", len(patient), patient)
    with listening(server, app) as address, ExitStack() as stack:
        engine.hold.clear()
        for number in range(40):
            client = stack.enter_context(connect(address))
            client.sendall((page, wait)[number % 2])
            time.sleep(0.02)
        until(lambda: server.requests.by_tenant["bad"] == 9)
        found = talk(address, b"GET /v2/health/live HTTP/1.1\r\n%s\r\n" % lines, close=True)
        assert b" 200 OK" in found
        engine.hold.set()
        good = ask % (INFER.encode(), lines % b"good", len(patient), patient)
        assert b" 200 OK" in talk(address, good, close=True)
    until(lambda: server.requests.held == 0)


def test_connections_fit_the_limit_of_open_files(monkeypatch):
    changed = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 256))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: changed.append(limits))
    most, at_once = connections.allowed_connections(1000)
    assert 1 <= most == at_once < (256 - 16) / 2
    assert changed == [(256, 256)]


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_a_client_that_has_sent_all_and_closes_its_side_is_answered(version):
    engine = FakeEngine()
    server = make_server(engine)
    with listening(server) as address, connect(address) as client:
        engine.hold.clear()
        client.sendall(REQUEST.replace(b"HTTP/1.1", b"HTTP/" + version))
        client.shutdown(socket.SHUT_WR)
        until(lambda: server.worker._running is not None)
        time.sleep(0.05)
        engine.hold.set()
        found = read_all(client)
    while found.startswith(b"HTTP/1.1 100"):
        found = found.partition(b"\r\n\r\n")[2]
    assert found.startswith(b"HTTP/1.1 200 OK")
    assert b"logits" in found


def test_pipelined_clients_that_leave_write_no_traceback(caplog):
    server = make_server(FakeEngine(per_pass=0.003), slo=1.0)
    with listening(server) as address:
        errors = logging.getLogger("uvicorn.error")
        errors.addHandler(caplog.handler)  # it hands nothing on
        try:
            for number in range(24):
                with connect(address) as client:
                    client.sendall(REQUEST * (2, 4, 20)[number % 3] + REQUEST[: 50 * (number % 2)])
                    time.sleep(0.004 * (number % 4))
                    if number % 2:
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1" + b"\0" * 7)
            until(lambda: not server.worker.is_busy)
            time.sleep(0.1)
        finally:
            errors.removeHandler(caplog.handler)
        assert httpx.get(f"http://{address}/v2/health/live").status_code == 200
    assert not [record.getMessage() for record in caplog.records if record.exc_info]


def test_one_client_cannot_queue_endless_requests():
    engine = FakeEngine()
    server = make_server(engine)
    with listening(server) as address, connect(address) as client:
        engine.hold.clear()
        client.sendall(REQUEST)
        until(lambda: server.worker._running is not None)
        client.sendall(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        assert b" 400 " in client.recv(1000)
        engine.hold.set()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        (b"GET /v2 HTTP/0.9\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /v2\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: a@localhost\r\n\r\n", 421),
        (b"GET /v2 HTTP/1.1\r\nHost: localhost/x\r\n\r\n", 421),
        (b"GET /v2 HTTP/1.1\r\nHost: \r\n\r\n", 421),
        (b"GET /v2 HTTP/1.1\r\nHost: localhost:x\r\n\r\n", 421),
        (b"GET /v2 HTTP/1.1\r\nHost: LOCALHOST:80\r\n\r\n", 200),
        (b"GET /v2 HTTP/1.0\r\n\r\n", 200),
    ],
)
def test_odd_requests(data, status):
    with listening(make_server(hosts=("localhost", "127.0.0.1"))) as address:
        found = talk(address, data.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert found.startswith(b"HTTP/1.1 %d " % status), found


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://test", "sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://test:3000", "sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
    ],
)
def test_pages_of_other_sites_cannot_send_requests_where_no_key_is_needed(headers, status):
    async def main(tenants=None):
        async with client_of(make_server(tenants=tenants)) as client:
            headers["x-api-key"] = "a" * 16
            for path in (INFER, "/v2/repository/index"):
                found = await client.post(path, json=tensor(images(1)), headers=headers)
                yield found.status_code
            yield (await client.get("/v2", headers=headers)).status_code

    async def collect(tenants=None):
        return [found async for found in main(tenants)]

    assert asyncio.run(collect()) == [status, status, 200]
    keys = Tenants({"a" * 16: Tenant(name="a")})
    assert asyncio.run(collect(keys)) == [200, 200, 200], "the key is what protects"


def test_the_schema_needs_a_key_where_there_are_keys():
    async def main():
        keys = Tenants({"a" * 16: Tenant(name="a")})
        async with client_of(make_server(tenants=keys)) as client:
            without = await client.get("/openapi.json")
            found = await client.get("/openapi.json", headers={"x-api-key": "a" * 16})
            return without.status_code, found.json()["paths"]

    status, paths = asyncio.run(main())
    assert status == 401
    assert "/v1/classify" in paths


def test_a_port_that_is_taken_is_named_with_what_to_do(capsys):
    (taken,) = listen("127.0.0.1", 0)
    taken.listen()
    port = taken.getsockname()[1]
    try:
        assert main(["serve", "digits", "--port", str(port)]) == 2
    finally:
        taken.close()
    found = capsys.readouterr().err
    assert f"Port {port} of 127.0.0.1" in found
    assert "--port" in found


def test_options_that_make_no_sense_are_refused(capsys):
    with pytest.raises(ValueError, match="without a name: write NAME=digits, or digits"):
        name_and_folders("=digits")
    with pytest.raises(SystemExit):
        main(["serve", "digits", "--cascade", "5"])
    assert "'5' must be a fraction" in capsys.readouterr().err


SERVE = """
import sys
from mimonets.serving.run import run_server
from serving.fakes import FakeEngine, make_server

server = make_server(FakeEngine(per_pass=0.05), slo=20.0)
server.on_ready = lambda: print("ready", flush=True)
run_server(server, port=int(sys.argv[1]))
"""


def test_stalled_clients_do_not_delay_the_end_and_what_was_admitted_is_answered():
    (probe,) = listen("127.0.0.1", 0)
    port = probe.getsockname()[1]
    probe.close()
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    )
    clients = []
    try:
        assert process.stdout.readline() == "ready\n"
        address = f"127.0.0.1:{port}"
        for number in range(50):
            clients.append(connect(address))
            clients[-1].sendall((b"", b"POST / HTT", REQUEST[:-5], REQUEST[:200])[number % 4])
        admitted = [connect(address) for _ in range(8)]
        clients += admitted
        for client in admitted:
            client.sendall(REQUEST)
        time.sleep(0.2)
        process.terminate()
        started = time.monotonic()
        assert process.wait(20) == 0
        took = time.monotonic() - started
        assert took < 5
        for client in admitted:
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        assert "Traceback" not in process.stderr.read()
    finally:
        for client in clients:
            client.close()
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def is_open(client):
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def test_a_client_in_a_flood_of_connections_is_answered():
    server = make_server(max_connections=20)
    with listening(server) as address, ExitStack() as stack:
        server.worker._loop.call_soon_threadsafe(time.sleep, 0.5)  # all are accepted at once
        flood = [stack.enter_context(connect(address)) for _ in range(30)]
        good = stack.enter_context(connect(address))
        good.sendall(REQUEST)
        flood += [stack.enter_context(connect(address)) for _ in range(50)]
        assert good.recv(15) == b"HTTP/1.1 200 OK"
        time.sleep(0.2)
        assert sum(map(is_open, flood)) <= 20


def unread(address):
    """Ask for more than the machine's buffers hold, and read none of it."""
    host, port = address.split(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((host, int(port)))
    client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
    return client


def serving_much(**settings):
    server = make_server(**settings)
    app = make_app(server)

    @app.get("/large")
    async def large():
        return Response(bytes(2**20))

    return listening(server, app)


def test_a_client_that_does_not_read_is_closed_and_makes_room_for_others():
    with serving_much(max_connections=3, header_timeout=30.0) as address:
        silent = [unread(address) for _ in range(3)]
        time.sleep(0.5)
        assert b"200 OK" in talk(
            address, b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", close=True
        )
        for client in silent:
            client.close()
    with serving_much(header_timeout=0.5) as address, unread(address) as client:
        time.sleep(2)
        assert len(read_all(client)) < 19 * 2**20, "the rest is still sent"


def test_a_client_that_reads_slowly_gets_its_answers():
    with serving_much(header_timeout=0.5) as address, unread(address) as slow:
        slow.settimeout(5)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            assert slow.recv(2**19)
            time.sleep(0.01)


WATCHED = """
import json, socket, sys, threading
from mimonets.serving import app, run, site
from serving.fakes import images, listening, make_server, tensor
from serving.hostile_files import png

def hook(event, values):
    if event == "import" and threading.current_thread() not in (None, threading.main_thread()):
        found.append(values[0])

run.import_ahead()
server = make_server()
served = app.make_app(server)
site.add_site(served, server)
body, found = json.dumps(tensor(images(1))).encode(), []
with listening(server, served) as address:
    sys.addaudithook(hook)
    host, port = address.split(":")
    head = "%s HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Type: %s\\r\\n"
    head += "Content-Length: %d\\r\\n\\r\\n"
    for line, kind, content in (
        ("POST /v2/models/digits/infer", "application/json", body),
        ("POST /v1/classify", "image/png", png(2)),
        ("GET /metrics", "text/plain", b""),
        ("GET /", "text/plain", b""),
        ("GET /v1/events", "text/plain", b""),
    ):
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall((head % (line, kind, len(content))).encode() + content)
            assert b" 200 " in client.recv(15), line
            if "events" in line:
                while b"p99_ms" not in client.recv(10_000):
                    pass
print(found)
"""


def test_requests_import_nothing():
    """An import holds up the loop; in a process of its own, since here all is imported."""
    ended = subprocess.run(
        [sys.executable, "-c", WATCHED],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[1],
        check=True,
    )
    assert ended.stdout.split("\n")[-2] == "[]", ended.stdout
