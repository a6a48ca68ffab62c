"""Warm up a network on the inference thread while others are served."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mimonets.serving.modes import Mode
from mimonets.serving.networks import Network
from mimonets.serving.worker import Worker


async def warm_up(network: Network, worker: Worker, clock: Callable[[], float]) -> list[Mode]:
    """Warm up on the inference thread, one call at a time, between jobs."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[list[Mode]] = loop.create_future()

    def tell(modes: list[Mode] | None, error: Exception | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        elif modes is not None:
            done.set_result(modes)

    def tell_loop(modes: list[Mode] | None, error: Exception | None) -> None:
        loop.call_soon_threadsafe(tell, modes, error)

    worker.when_idle(_WarmUp(network.warm_up(clock), worker, tell_loop))
    return await done


@dataclass(frozen=True)
class _WarmUp:
    """Takes one step of a warm-up, and asks for the next idle time.

    A function that asks for itself would be a cycle, which keeps its network in memory for ever:
    a running server has told the garbage collector to leave alone what was loaded.
    """

    steps: Iterator[list[Mode] | None]
    worker: Worker
    tell: Callable[[list[Mode] | None, Exception | None], object]

    def __call__(self) -> None:
        try:
            modes = next(self.steps)
        except Exception as error:
            self.tell(None, error)
            return
        if modes is None:
            self.worker.when_idle(self)
        else:
            self.tell(modes, None)
