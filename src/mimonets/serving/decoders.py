"""Threads for what takes more than some ms. No tenant takes them all, and work can be ended."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from mimonets.serving.request_options import RequestError

THREADS = 2
LATE = "The deadline passed before the request was decoded."
Found = TypeVar("Found")


class Decoders:
    """The threads, and who may use how many of them."""

    def __init__(self, clock: Callable[[], float], share: float = 1.0) -> None:
        self._clock = clock
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="decode")
        most = max(1, int(share * THREADS))
        self._free = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(most))

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
            await self._acquire(tenant, until)
            try:
                check()
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, work, check)
            finally:
                self._free[tenant].release()
        finally:
            gone.set()  # of a request that is cancelled, nobody needs the rest
            leaving.cancel()

    async def _acquire(self, tenant: str, until: float) -> None:
        try:
            async with asyncio.timeout(max(until - self._clock(), 0)):
                await self._free[tenant].acquire()
        except TimeoutError:
            raise RequestError(504, LATE) from None

    def stop(self) -> None:
        """Take no more work."""
        self._threads.shutdown(wait=False, cancel_futures=True)
