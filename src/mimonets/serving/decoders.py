"""Threads for what takes more than some ms. No tenant takes them all, and work can be ended."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from mimonets.serving.request_options import RequestError

THREADS = 2
LATE = "The deadline passed before the request was decoded."
Found = TypeVar("Found")


class Turns:
    """So many may do something at once, and of one tenant its share of them."""

    def __init__(self, most: int, share: float, clock: Callable[[], float]) -> None:
        self._clock, self._all = clock, asyncio.Semaphore(most)
        own = max(1, int(share * most))
        self._own = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(own))

    @asynccontextmanager
    async def take(self, tenant: str, until: float) -> AsyncIterator[None]:
        """Wait for a turn; 504 if there is none before ``until``."""
        async with AsyncExitStack() as taken:
            try:
                async with asyncio.timeout(max(until - self._clock(), 0)):
                    await taken.enter_async_context(self._own[tenant])
                    await taken.enter_async_context(self._all)
            except TimeoutError:
                raise RequestError(504, LATE) from None
            yield


class Decoders:
    """The threads, and who may use how many of them."""

    def __init__(self, clock: Callable[[], float], share: float = 1.0) -> None:
        self._clock = clock
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="decode")
        self._turns = Turns(THREADS, share, clock)

    async def run(
        self,
        tenant: str,
        until: float,
        client_leaves: Callable[[], Coroutine[Any, Any, None]],
        work: Callable[[Callable[[], None]], Found],
    ) -> Found:
        """Run ``work(check)`` on a thread; ``check`` raises if it is late or the client left."""
        gone = threading.Event()

        def check() -> None:
            if gone.is_set():
                raise RequestError(499, "The client left.")
            if self._clock() > until:
                raise RequestError(504, LATE)

        async def watch() -> None:
            await client_leaves()
            gone.set()

        leaving = asyncio.create_task(watch())
        leaving.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            async with self._turns.take(tenant, until):
                check()
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, work, check)
        finally:
            gone.set()  # of a request that is cancelled, nobody needs the rest
            leaving.cancel()

    def stop(self) -> None:
        """Take no more work."""
        self._threads.shutdown(wait=False, cancel_futures=True)
