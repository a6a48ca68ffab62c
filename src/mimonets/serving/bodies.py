"""Bodies of requests: their bytes are counted, in all and per tenant, until they are decoded."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mimonets.serving.errors import RequestError
from mimonets.serving.limits import Budget

Receive = Callable[[], Awaitable[Any]]


class Bodies(Budget):
    """The bytes of all bodies that a server holds."""

    def __init__(self, *, most: int, share: float = 1.0, timeout: float = 30.0) -> None:
        super().__init__("bytes", "under way", most, share)
        self.timeout = timeout  # seconds to send one
        self.timers: set[asyncio.Timeout] = set()  # of bodies that still come
        self.ends_at: float | None = None  # time of the loop from which on nobody may send

    def end(self, seconds: float) -> None:
        """Shut down: let clients send for so long what they have begun. Called on the loop."""
        self.ends_at = asyncio.get_running_loop().time() + seconds
        for timer in self.timers:
            timer.reschedule(self.ends_at)


class Body:
    """One body: ``with Body(bodies, tenant) as body: decode(await body.read(...))``."""

    def __init__(self, bodies: Bodies, tenant: str) -> None:
        self._bodies, self._tenant, self.size = bodies, tenant, 0

    def __enter__(self) -> "Body":
        return self

    def __exit__(self, *error: object) -> None:
        self._bodies.add(self._tenant, -self.size)

    async def read(self, receive: Receive, headers: Mapping[bytes, bytes], most: int) -> bytes:
        """Read all of it; compressed ones are not taken."""
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise RequestError(415, "Compressed requests are not taken: send the body as it is.")
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and (len(announced) > 15 or int(announced) > most):
            raise _too_large(most)
        bodies, parts = self._bodies, list[bytes]()
        timer = asyncio.timeout(bodies.timeout)
        if bodies.ends_at is not None:
            timer = asyncio.timeout_at(bodies.ends_at)
        try:
            async with timer:
                bodies.timers.add(timer)
                await self._receive(receive, most, parts)
        except TimeoutError:
            if bodies.ends_at is not None:
                raise RequestError(503, "The server is shutting down.") from None
            raise RequestError(408, f"The body took over {bodies.timeout:g} s.") from None
        finally:
            bodies.timers.discard(timer)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _receive(self, receive: Receive, most: int, parts: list[bytes]) -> None:
        is_more = True
        while is_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RequestError(499, "The client left.")
            part = message.get("body", b"")
            self._count(len(part), most)
            parts.append(part)
            is_more = message.get("more_body", False)

    def _count(self, size: int, most: int) -> None:
        if self.size + size > most:
            raise _too_large(most)
        self._bodies.check(self._tenant, size, besides=self.size)
        self._bodies.add(self._tenant, size)
        self.size += size


def _too_large(most: int) -> RequestError:
    return RequestError(413, f"A request may have at most {most} bytes here.")
