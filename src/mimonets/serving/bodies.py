"""Bodies of requests: their bytes are counted, in all and per tenant, until they are decoded."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mimonets.serving.request_options import RequestError

Receive = Callable[[], Awaitable[Any]]


class Bodies:
    """All bodies that a server holds."""

    def __init__(self, *, most: int, share: float = 1.0, timeout: float = 30.0) -> None:
        self.most, self.share, self.timeout = most, share, timeout
        self.held = 0  # bytes
        self.held_by_tenant: Counter[str] = Counter()
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
        self._bodies.held -= self.size
        self._bodies.held_by_tenant[self._tenant] -= self.size

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
        """Count more bytes. The share of a tenant does not limit the only body that it sends."""
        bodies, tenant = self._bodies, self._tenant
        others = bodies.held_by_tenant[tenant] - self.size
        if self.size + size > most:
            raise _too_large(most)
        if bodies.held + size > bodies.most:
            raise RequestError(429, f"{bodies.held} bytes of requests are under way.", 1.0)
        if others and others + self.size + size > bodies.share * bodies.most:
            raise RequestError(429, f"{others} bytes of this tenant's are under way.", 1.0)
        self.size += size
        bodies.held += size
        bodies.held_by_tenant[tenant] += size


def _too_large(most: int) -> RequestError:
    return RequestError(413, f"A request may have at most {most} bytes here.")
