"""Limits that clients share: so much for all of them, and of it each tenant its share."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf

from mimonets.serving.errors import RefusedError, RequestError

LATE = "The deadline passed before the request was decoded."


class Budget:
    """So much of something may be held at once; the quota of a tenant replaces its share."""

    def __init__(
        self,
        what: str,
        how: str,
        most: float = inf,
        share: float = 1.0,
        quotas: Mapping[str, int] | None = None,
    ) -> None:
        self.what, self.how = what, how
        self.most, self.share, self.quotas = most, share, dict(quotas or {})
        self.held = 0
        self.by_tenant: Counter[str] = Counter()

    def check(self, tenant: str, amount: int, besides: int = 0) -> None:
        """Raise RefusedError if there is no room for so much more.

        The share of a tenant does not limit the only request that it has: ``besides`` of what it
        holds belongs to this one.
        """
        quota, own = self.quotas.get(tenant), self.by_tenant[tenant]
        most, name = (self.most, "limit") if quota is None else (quota, "quota")
        if besides + amount > most:
            raise RefusedError(
                f"{besides + amount} {self.what} in one request; the {name} is {most}: send fewer.",
                None,
            )
        if self.held + amount > self.most:
            raise RefusedError(f"{self.held} {self.what} are {self.how} already.")
        if quota is None and own > besides:
            most = self.share * self.most
        if own + amount > most:
            raise RefusedError(
                f"This tenant has {own} {self.what} {self.how}; its {name} is {most:.0f}."
            )

    def add(self, tenant: str, amount: int) -> None:
        """Hold more, or, if it is negative, less."""
        self.held += amount
        self.by_tenant[tenant] += amount


class Turns:
    """So many may do something at once; others wait for their turn.

    With ``patience`` nobody waits for long: who waits gives who has had a turn longest so many
    seconds to end, and less where many wait.
    """

    def __init__(self, most: int, share: float = 1.0, patience: float | None = None) -> None:
        own = max(1, int(share * most))
        self._all = _Pool(most, patience)
        self._own = defaultdict[str, _Pool](lambda: _Pool(own, patience))

    @asynccontextmanager
    async def take(self, tenant: str, seconds: float | None = None) -> AsyncIterator[None]:
        """Wait for a turn: 504 if there is none in so many seconds, 429 if it was taken away."""
        async with AsyncExitStack() as taken:
            try:
                async with asyncio.timeout(seconds):
                    await taken.enter_async_context(self._own[tenant].turn())
                    await taken.enter_async_context(self._all.turn())
            except TimeoutError:
                raise RequestError(504, LATE) from None
            yield


class _Pool:
    def __init__(self, most: int, patience: float | None) -> None:
        self._most, self._patience = most, patience
        self._free, self._waiting = asyncio.Semaphore(most), 0
        self._calm: dict[asyncio.Timeout, None] = {}  # whom nobody told to end, oldest first

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        self._waiting += 1
        try:
            if self._free.locked():
                self._hurry()
            await self._free.acquire()
        finally:
            self._waiting -= 1
        timer = asyncio.timeout(None)
        try:
            async with timer:
                self._calm[timer] = None
                if self._waiting:
                    self._hurry()
                yield
        except TimeoutError:
            if timer.expired():
                raise RefusedError("It took too long to come while others waited.") from None
            raise
        finally:
            self._calm.pop(timer, None)
            self._free.release()

    def _hurry(self) -> None:
        if self._patience is not None and self._calm:
            oldest = next(iter(self._calm))
            del self._calm[oldest]
            left = self._patience / (1 + self._waiting // self._most)
            oldest.reschedule(asyncio.get_running_loop().time() + left)
