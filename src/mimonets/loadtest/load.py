"""Open-loop load: send by a schedule that was made before, whatever the server does.

Latency counts from the moment a request was meant to be sent, so that a slow server cannot slow
down its own test. A run in which the generator itself lagged is void.
"""

import asyncio
import gc
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mimonets._messages import shorten
from mimonets._seeds import wilson_interval
from mimonets._show import progress

Array = np.ndarray[Any, Any]
TIMER = 0.0005  # seconds
MAX_LAG = 0.002  # seconds, at the 99th percentile


@dataclass(frozen=True)
class Samples:
    """Inputs to send, with the right answers where they are known."""

    inputs: Array
    labels: Array | None = None

    @classmethod
    def read(cls, path: str | Path) -> "Samples":
        """Read an ``.npz`` file with ``inputs`` and, if there are any, ``labels``."""
        try:
            with np.load(path, allow_pickle=False) as file:
                labels = file.get("labels", None)
                return cls(file["inputs"], labels)
        except (ValueError, KeyError, OSError) as error:
            raise ValueError(f"{path} holds no samples (an .npz with inputs): {error}") from None


@dataclass(frozen=True)
class LoadResult:
    """What became of every request, in order of the schedule."""

    intended: Array  # seconds since the start
    lag: Array  # seconds that the generator itself was late
    latency: Array  # seconds from the intended time; nan without an answer
    status: Array  # HTTP status; 0 if the connection failed
    right: Array  # True, where labels were known and the answer was right
    active: Array  # active streams of the pass
    slo: float
    has_labels: bool
    complaint: str = ""  # what the server said to the first request that it did not answer

    @property
    def is_void(self) -> bool:
        """Tell whether the generator was too slow for this load."""
        return bool(np.percentile(self.lag, 99) > MAX_LAG)

    def check(self) -> None:
        """Raise ValueError if no request was answered: there is nothing to report then."""
        if not (self.status == 200).any():
            codes = ", ".join(f"{code}: {n}" for code, n in self.summary()["status"].items())
            said = f" The first answer says: {self.complaint}" if self.complaint else ""
            raise ValueError(
                f"None of {len(self.status)} requests was answered "
                f"(by status, 0 is no connection: {codes}).{said}"
            )

    def summary(self) -> dict[str, Any]:
        """Give the headline numbers, as fractions of all that was offered."""
        answered = self.status == 200
        in_time = answered & (self.latency <= self.slo)
        latencies = self.latency[answered] if answered.any() else np.array([np.nan])
        codes, counts = np.unique(self.status, return_counts=True)
        found: dict[str, Any] = {
            "offered": len(self.intended),
            "rate": len(self.intended) / max(float(self.intended[-1]), 1e-9),
            "in_time": float(in_time.mean()),
            "p50": float(np.percentile(latencies, 50)),
            "p99": float(np.percentile(latencies, 99)),
            "active": float(self.active[answered].mean()) if answered.any() else float("nan"),
            "refused": float((self.status == 429).mean()),
            "status": {str(code): int(n) for code, n in zip(codes, counts, strict=True)},
            "lag_p99": float(np.percentile(self.lag, 99)),
            "void": self.is_void,
        }
        if self.has_labels:
            found["right_in_time"] = float((in_time & self.right).mean())
            found["accuracy"] = float(self.right[answered].mean()) if answered.any() else 0.0
            found["interval"] = wilson_interval(
                int(self.right[answered].sum()), int(answered.sum())
            )
        return found


async def send(
    url: str,
    schedule: Sequence[float] | Array,
    samples: Samples,
    *,
    slo: float,
    key: str | None = None,
    parameters: dict[str, Any] | None = None,
    seed: int = 0,
    binary: bool = True,
) -> LoadResult:
    """Send one input at each time of the schedule; ``url`` is that of a model, .../v2/models/M.

    ``binary=False`` sends numbers as JSON, for servers without the binary tensor extension.
    """
    import aiohttp

    schedule = np.asarray(schedule, dtype=float)
    count = len(schedule)
    chosen = np.random.default_rng(seed).integers(len(samples.inputs), size=count)
    bodies = Bodies(samples, {"timeout": int(slo * 1e6), **(parameters or {})}, binary)
    lag, latency = np.zeros(count), np.full(count, np.nan)
    status, active = np.zeros(count, dtype=int), np.zeros(count, dtype=int)
    right = np.zeros(count, dtype=bool)
    complaints: list[str] = []
    headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def one(session: Any, number: int, start: float) -> None:
        row = int(chosen[number])
        body, how = bodies.of(row)
        lag[number] = time.perf_counter() - start - schedule[number]
        try:
            async with session.post(f"{url}/infer", data=body, headers=how) as response:
                content = await response.read()
                status[number] = response.status
        except (aiohttp.ClientError, TimeoutError):
            return
        latency[number] = time.perf_counter() - start - schedule[number]
        if status[number] == 200:
            answer = json.loads(content)
            active[number] = answer["parameters"]["active_streams"]
            if samples.labels is not None:
                right[number] = answer["outputs"][0]["data"][0] == int(samples.labels[row])
        elif not complaints:
            complaints.append(shorten(content.decode(errors="replace"), 200))

    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=4 * slo + 10)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=timeout
    ) as session:
        await _check(session, url)
        tasks = []
        start = time.perf_counter() + 0.05
        with _undisturbed(), progress("sending", count) as advance:
            for number in range(count):
                # The loop's timers are up to a millisecond late: aim before, and wait for the rest.
                wait = start + schedule[number] - time.perf_counter()
                if wait > TIMER:
                    await asyncio.sleep(wait - TIMER)
                while time.perf_counter() < start + schedule[number]:
                    await asyncio.sleep(0)
                tasks.append(asyncio.create_task(one(session, number, start)))
                advance()
            await asyncio.gather(*tasks)
    return LoadResult(
        schedule,
        lag,
        latency,
        status,
        right,
        active,
        slo,
        has_labels=samples.labels is not None,
        complaint="".join(complaints),
    )


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Collect no garbage, and run ahead of other processes if the system allows it (root).

    Both make the load late: a collection goes through all modules, and the server that is measured
    wants the cores too.
    """
    frozen, leads = gc.get_freeze_count(), False
    gc.freeze()
    with suppress(AttributeError, OSError):  # macOS and Windows; no right to it
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            leads = True
    try:
        yield
    finally:
        if leads:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        if not frozen:  # else it was frozen before, and stays so
            gc.unfreeze()


class Bodies:
    """Encoded requests, each made once."""

    def __init__(self, samples: Samples, parameters: dict[str, Any], binary: bool = True) -> None:
        self._samples, self._parameters, self._binary = samples, parameters, binary
        kinds = {"f": ("FP32", "<f4"), "u": ("UINT8", "u1"), "i": ("INT64", "<i8")}
        self._kind, self._type = kinds[samples.inputs.dtype.kind]
        self._made: dict[tuple[int, int], tuple[bytes, dict[str, str]]] = {}

    def of(self, row: int, count: int = 1) -> tuple[bytes, dict[str, str]]:
        """Give the body of a request for one sample, or some in a row, and its HTTP headers."""
        if (row, count) not in self._made:
            self._made[row, count] = self._encode(self._samples.inputs[row : row + count])
        return self._made[row, count]

    def _encode(self, inputs: Array) -> tuple[bytes, dict[str, str]]:
        raw = inputs.astype(self._type)
        tensor: dict[str, Any] = {"name": "input", "datatype": self._kind, "shape": raw.shape}
        outputs = [{"name": "label"}]
        content = {"inputs": [tensor], "outputs": outputs, "parameters": self._parameters}
        if not self._binary:
            tensor["data"] = raw.ravel().tolist()
            return json.dumps(content).encode(), {"Content-Type": "application/json"}
        tensor["parameters"] = {"binary_data_size": raw.nbytes}
        text = json.dumps(content).encode()
        return text + raw.tobytes(), {"Inference-Header-Content-Length": str(len(text))}


async def _check(session: Any, url: str) -> None:
    import aiohttp

    try:
        async with session.get(url) as response:
            if response.status != 200:
                text = (await response.text())[:200]
                raise ValueError(f"{url} answers {response.status}: {text}")
    except aiohttp.ClientError as error:
        raise ValueError(f"Nothing answers at {url}: {error}. Is the server running?") from None


def random_samples(description: dict[str, Any], count: int = 64, seed: int = 0) -> Samples:
    """Make inputs of the shape that a model's metadata says."""
    (given,) = description["inputs"]
    shape = [side if side > 0 else 16 for side in given["shape"][1:]]
    rng = np.random.default_rng(seed)
    if given["datatype"] == "INT64":
        return Samples(rng.integers(0, 2, size=(count, *shape), dtype=np.int64))
    # Values far beyond those of any pixel are refused: what every server takes is within +-2.
    return Samples(rng.standard_normal((count, *shape), dtype=np.float32).clip(-1.9, 1.9))
