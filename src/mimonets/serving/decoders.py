"""Threads for what takes more than some ms. No tenant takes them all, and work can be ended."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from mimonets.serving.errors import RequestError
from mimonets.serving.limits import LATE, Turns

THREADS = 2
Found = TypeVar("Found")


class Decoders:
    """The threads, and who may use how many of them."""

    def __init__(self, clock: Callable[[], float], share: float = 1.0) -> None:
        self._clock = clock
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="decode")
        self._turns = Turns(THREADS, share)

    async def run(
        self,
        tenant: str,
        until: float,
        work: Callable[[Callable[[], None]], Found],
        client_leaves: Callable[[], Coroutine[Any, Any, None]] | None = None,
        *,
        at_once: bool = False,
    ) -> Found:
        """Run ``work(check)`` on a thread; ``check`` raises if it is late or the client left.

        ``at_once``: run it here, since it takes less than the way to a thread.
        """
        if at_once:
            return work(lambda: None)
        gone = threading.Event()

        def check() -> None:
            if gone.is_set():
                raise RequestError(499, "The client left.")
            if self._clock() > until:
                raise RequestError(504, LATE)

        async def watch() -> None:
            if client_leaves is not None:
                await client_leaves()
                gone.set()

        leaving = asyncio.create_task(watch())
        leaving.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            async with self._turns.take(tenant, max(until - self._clock(), 0)):
                check()
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, work, check)
        finally:
            gone.set()  # of a request that is cancelled, nobody needs the rest
            leaving.cancel()

    def stop(self) -> None:
        """Take no more work."""
        self._threads.shutdown(wait=False, cancel_futures=True)
