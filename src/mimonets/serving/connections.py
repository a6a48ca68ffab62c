"""One client's connection: time limits for headers, a limit on connections, answers after a FIN."""

import asyncio
import logging
import os
from itertools import islice
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

log = logging.getLogger(__name__)
LONGEST_HEADERS = 64 * 2**10  # bytes of headers; of what is in a chunked body besides it, too
MOST_HEADERS = 100
SMALLEST_PIECE = 16  # bytes that a piece of a body has on average, after the first 1,000 pieces
MOST_PIPELINED = 100  # requests that one client sends before their answers
LOOKED_AT = 32  # connections that may have sent something, when one has to be closed
BACKLOG = 2048  # connections that are accepted at once, at most
SPARE_DESCRIPTORS = 16  # that stay free for files and models


class Connection(HttpToolsProtocol):
    """A connection that does not trust its client."""

    header_timeout = 10.0  # seconds
    most = 1000  # connections at once
    _warned_at = -1.0  # of the class: a line a second is enough

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._under_way: list[RequestResponseCycle] = []
        self._timer: asyncio.TimerHandle | None = None  # for headers, or after the client's end
        self._reading: asyncio.TimerHandle | None = None  # for answers that fill the buffers
        self._header_bytes = self._body_bytes = self._pieces = 0
        self._since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a client, if there is room."""
        super().connection_made(transport)
        self._start_timer()
        if len(self.connections) <= self.most:
            return
        found = [one for one in self.connections if not one.transport.is_closing()]
        if len(found) <= self.most:
            return
        others = sorted(cast(list[Connection], found), key=lambda one: one._since)
        # This one is the last of them. Many are accepted at once: what came is not read yet.
        oldest = list(islice((one for one in others if one._awaits_client), LOOKED_AT))
        self._warn(f"{self.most} connections are open: the one that sent nothing longest is closed")
        next((one for one in oldest if not one._has_unread), oldest[0]).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell every request of this client, not the last alone."""
        self._stop_timer()
        self._stop_reading()
        for cycle in self._under_way:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self.parser is None or self.transport.is_closing():
            return
        self._header_bytes += len(data)
        super().data_received(data)
        if self._header_bytes > LONGEST_HEADERS and not self.transport.is_closing():
            self.send_400_response(f"Headers may have at most {LONGEST_HEADERS} bytes.")
        elif self._is_idle and self._timer is None:
            self._start_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer behind a body."""
        if len(self.headers) >= MOST_HEADERS:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body; every piece costs the same time, however small it is."""
        self._pieces += 1
        self._body_bytes += len(body)
        if self._pieces > 1000 + self._body_bytes / SMALLEST_PIECE:
            raise ValueError("too small pieces of a body")
        if not self.cycle.response_complete:  # a body that nobody reads any more is too much
            self._header_bytes = max(0, self._header_bytes - len(body) - SMALLEST_PIECE)
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """Start a request."""
        if len(self.pipeline) >= MOST_PIPELINED:
            raise ValueError("too many requests before their answers")
        self._stop_timer()
        self._header_bytes = self._body_bytes = self._pieces = 0
        self._since = self.loop.time()
        super().on_headers_complete()
        if self.cycle is not None:
            self._under_way = [one for one in self._under_way if not one.response_complete]
            self._under_way.append(self.cycle)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._since = self.loop.time()
        super().on_response_complete()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Stay open for the answers to a client that has sent all it wanted to.

        A client that left looks the same until something is sent to it: an interim response, which
        every client of HTTP/1.1 has to ignore, makes its machine say so to the next one.
        """
        if self.is_waiting:
            return False
        self.cycle.keep_alive = False
        self._probe(0.02)
        return True

    def _probe(self, pause: float) -> None:
        asked = next((one for one in self._under_way if not one.response_complete), None)
        if asked is None or asked.response_started or self.transport.is_closing():
            return
        if asked.scope["http_version"] == "1.1":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._timer = self.loop.call_later(pause, self._probe, min(5 * pause, 1.0))

    def pause_writing(self) -> None:
        """Send no more for now: the client does not read, or not fast enough."""
        super().pause_writing()
        self._since = self.loop.time()
        self._await_reading(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Go on."""
        self._stop_reading()
        super().resume_writing()

    def _await_reading(self, size: int) -> None:
        self._stop_reading()
        self._reading = self.loop.call_later(self.header_timeout, self._still_reads, size)

    def _still_reads(self, size: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < size:
            self._await_reading(left)
        else:
            self._warn(f"a client did not read its answer for {self.header_timeout:g} s")
            self.transport.abort()

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    @property
    def is_waiting(self) -> bool:
        """Tell whether nothing that was received whole is being answered."""
        return all(one.response_complete or one.more_body for one in self._under_way)

    @property
    def _awaits_client(self) -> bool:
        """Whether the client has to act next: send a request, or read an answer."""
        is_sent = self.transport.get_write_buffer_size() == 0
        return self.flow.write_paused or (self.is_waiting and is_sent)

    @property
    def _has_unread(self) -> bool:
        """Whether the client sent bytes that were not read yet."""
        try:
            from fcntl import ioctl
            from termios import FIONREAD

            file = self.transport.get_extra_info("socket").fileno()
            return any(ioctl(file, FIONREAD, bytes(4)))
        except (ImportError, OSError):  # Windows; a connection that is closed
            return False

    @property
    def _is_idle(self) -> bool:
        return all(one.response_complete for one in self._under_way)

    def _start_timer(self) -> None:
        self._since = self.loop.time()
        self._timer = self.loop.call_later(self.header_timeout, self._no_headers)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _no_headers(self) -> None:
        self._timer = None
        if not self.transport.is_closing() and self._is_idle:
            self._warn(f"a client sent no whole request in {self.header_timeout:g} s")
            self.transport.abort()

    def _warn(self, message: str) -> None:
        if self.loop.time() > Connection._warned_at + 1:
            Connection._warned_at = self.loop.time()
            log.warning("%s", message)


def connection_class(header_timeout: float, most: int) -> type[Connection]:
    """Make connections with limits."""
    return type("Connection", (Connection,), {"header_timeout": header_timeout, "most": most})


def allowed_connections(wanted: int) -> tuple[int, int]:
    """Say how many connections may be open, and how many accepted at once.

    That depends on the limit of open files, which is raised if it may be. A connection that is
    closed to make room keeps its file until all that were accepted with it have been looked at.
    """
    try:
        import resource

        used = len(os.listdir("/proc/self/fd")) + SPARE_DESCRIPTORS
    except (ImportError, OSError):  # Windows, macOS
        return wanted, BACKLOG
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + BACKLOG + used
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted, BACKLOG
    half = max(2, (soft - used) // 2)
    return min(wanted, half), half
