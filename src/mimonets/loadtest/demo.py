"""The demo's load: labelled inputs from a separate process, as often as the page's slider says.

The server talks to it in lines: a rate in, counts out. Also the process itself:
``python -m mimonets.loadtest.demo URL SAMPLES INPUTS_PER_REQUEST``.
"""

import asyncio
import base64
import json
import math
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import numpy as np

from mimonets._seeds import wilson_interval
from mimonets.loadtest.load import Bodies, Samples

WINDOW = 4.0  # seconds over which accuracy is counted
ABSENCE = 5.0  # seconds without a page until the load stops; loading a page again takes less
SLO = 0.2  # seconds
PICTURES = 20  # that the page shows
REQUESTS = 250  # a second, at the end of the slider
MOST_INPUTS = 64  # of a request


class DemoLoad:
    """Starts the process on the first use, and keeps what it reports."""

    def __init__(self, url: str, samples: str, facts: Mapping[str, Any] | None = None) -> None:
        self.url, self.samples, self.rate = url, samples, 0.0
        self.facts = dict(facts or {})  # what the page says of the network
        self.max_rate, self.step, self.burst = 400.0, 5.0, 1  # inputs per second, and per request
        self._capacity: dict[str, float] = {}
        self._pages = 0
        self._changing = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._stopping: asyncio.Future[None] | None = None
        self._reports: deque[tuple[float, dict[str, int]]] = deque(maxlen=100)

    def about(self) -> dict[str, Any]:
        """Give some sample images as PNG data URLs, for those who cannot draw."""
        return {
            **self.facts,
            "model": self.model,
            "max_rate": self.max_rate,
            "step": self.step,
            "capacity": self._capacity,
            "samples": self._shown,
        }

    @cached_property  # reading and encoding would hold up other requests
    def _shown(self) -> list[dict[str, Any]]:
        found = Samples.read(self.samples)
        labels = [None] * PICTURES if found.labels is None else found.labels[:PICTURES].tolist()
        return [
            {"image": _data_url(image), "label": label}
            for image, label in zip(found.inputs, labels, strict=False)
        ]

    @property
    def model(self) -> str:
        """The name of the model that gets the load."""
        return self.url.rpartition("/")[2]

    def scale(self, slow: float, fast: float) -> None:
        """Fit the slider to what the machine can do, in inputs per second of slow and fast mode.

        At its end the load is beyond slow mode, so that the operating point changes. About a
        hundred requests a second carry it, however many inputs that takes.
        """
        self._capacity = {"slow": slow, "fast": fast}
        most = min(max(1.5 * slow, 0.9 * fast), 4 * slow)
        unit = 10.0 ** math.floor(math.log10(most / 20))
        self.step = unit * next(part for part in (1, 2, 5, 10) if unit * part * 50 >= most)
        self.max_rate = self.step * math.ceil(most / self.step)
        self.burst = min(MOST_INPUTS, max(1, round(self.max_rate / REQUESTS)))

    async def set_rate(self, rate: float) -> None:
        """Change the load; starts the process if it does not run."""
        async with self._changing:  # two at once would start two processes
            await self._set_rate(rate)

    async def _set_rate(self, rate: float) -> None:
        self.rate = rate
        if self._process is None or self._process.returncode is not None:
            if rate == 0:
                return
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "mimonets.loadtest.demo",
                self.url,
                self.samples,
                str(self.burst),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            self._reader = asyncio.create_task(self._read(self._process))
        assert self._process.stdin is not None
        with suppress(ConnectionError):
            self._process.stdin.write(f"{rate}\n".encode())
            await self._process.stdin.drain()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Go on while a page looks; some seconds after the last one left, the load stops."""
        self._pages += 1
        try:
            yield
        finally:
            self._pages -= 1
            if self._pages == 0:
                asyncio.get_running_loop().call_later(ABSENCE, self._stop_if_alone)

    def _stop_if_alone(self) -> None:
        if self._pages == 0 and self.rate:
            self._stopping = asyncio.ensure_future(self.set_rate(0.0))

    async def stop(self) -> None:
        """End the process."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader

    def state(self) -> dict[str, Any]:
        """Give the rate, and the accuracy of the last seconds with its interval."""
        since = time.monotonic() - WINDOW
        recent = [report for report in self._reports if report[0] >= since]
        answered, right, refused = (
            sum(counts[name] for _, counts in recent) for name in ("answered", "right", "refused")
        )
        found: dict[str, Any] = {"rate": self.rate, "refused": refused / WINDOW}
        if answered:
            low, high = wilson_interval(right, answered)
            found |= {"accuracy": right / answered, "low": low, "high": high}
        return found

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            with suppress(ValueError, KeyError):
                self._reports.append((time.monotonic(), json.loads(line)))


async def generate(url: str, samples: Samples, burst: int = 1) -> None:
    """Send at the rate that the last line of standard input said; report twice a second.

    The rate is of inputs, of which a request has ``burst``.
    """
    import aiohttp

    rate, counts = 0.0, {"answered": 0, "right": 0, "refused": 0}
    bodies, rng = Bodies(samples, {"timeout": int(SLO * 1e6)}), np.random.default_rng()
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def listen() -> None:
        nonlocal rate
        while line := await reader.readline():
            rate = float(line)

    async def report() -> None:
        while True:
            await asyncio.sleep(0.5)
            print(json.dumps(counts), flush=True)
            counts.update(dict.fromkeys(counts, 0))

    async def one(session: Any) -> None:
        row = int(rng.integers(max(1, len(samples.inputs) - burst + 1)))
        body, headers = bodies.of(row, burst)
        with suppress(aiohttp.ClientError, TimeoutError):
            async with session.post(f"{url}/infer", data=body, headers=headers) as response:
                content = await response.read()
            if response.status != 200:
                counts["refused"] += burst
                return
            said = json.loads(content)["outputs"][0]["data"]
            counts["answered"] += len(said)
            if samples.labels is not None:
                counts["right"] += int(np.sum(said == samples.labels[row : row + len(said)]))

    async def send(session: Any) -> None:
        sending: set[asyncio.Task[None]] = set()
        upcoming = time.perf_counter()
        while True:
            if rate == 0:
                await asyncio.sleep(0.05)
                upcoming = time.perf_counter()
                continue
            upcoming = max(upcoming + rng.exponential(burst / rate), time.perf_counter() - 0.25)
            await asyncio.sleep(max(0.0, upcoming - time.perf_counter()))
            task = asyncio.create_task(one(session))
            sending.add(task)
            task.add_done_callback(sending.discard)

    connector = aiohttp.TCPConnector(limit=512)
    async with aiohttp.ClientSession(connector=connector) as session:
        tasks = [asyncio.create_task(work) for work in (listen(), report(), send(session))]
        # Standard input ends with the server: then this process ends too.
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()


def _data_url(image: Any) -> str:
    import io

    from PIL import Image

    file = io.BytesIO()
    pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


if __name__ == "__main__":
    asyncio.run(generate(sys.argv[1], Samples.read(sys.argv[2]), int(sys.argv[3])))
