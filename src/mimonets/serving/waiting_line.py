"""Inputs that wait, in order of service, in blocks whose work is known without looking inside.

Admission and the drain test ask what every prefix of the queue takes. They look into the few blocks
where that is close, and take a bound for all others: their time does not grow with the queue, but
for one comparison per block. Pure data.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from mimonets.serving.jobs import QueuedInput
from mimonets.serving.operating_points import ServedPoint

MOST = 128  # inputs of a block
Place = tuple[int, float, int]


class Block:
    """Neighbours in the queue: their earliest deadline and arrival, and a bound on their work."""

    __slots__ = ("bounds", "earliest", "inputs", "oldest")

    def __init__(self, inputs: list[QueuedInput]) -> None:
        self.inputs = inputs  # at least one; a block that changes is made anew
        self.earliest = min([queued.deadline for queued in inputs])
        self.oldest = min([queued.arrival for queued in inputs])
        self.bounds: dict[Any, Any] = {}  # that were asked for

    @property
    def last(self) -> Place:
        """The place of the last input."""
        return self.inputs[-1].place

    def bound(
        self, points: Sequence[ServedPoint], index: int, passes: int, tenant: str | None
    ) -> float:
        """Bound the time of all inputs, or of one tenant's, at this point or the nearest allowed.

        At least what `Backlog` says of any prefix of them: every short group has a call.
        """
        kinds = self.bounds.get("kinds")
        if kinds is None:
            kinds = self.bounds["kinds"] = Counter(
                (one.slowest, one.fastest, one.alone, one.shares, one.tenant) for one in self.inputs
            )
        seconds, full = 0.0, [0] * len(points)
        members: Counter[tuple[int, object]] = Counter()
        for (slowest, fastest, alone, shares, name), count in kinds.items():
            if tenant is not None and name != tenant:
                continue
            if alone:
                seconds += count * points[0].seconds(1)
            else:
                allowed = min(max(index, slowest), fastest)
                members[allowed, None if shares else name] += count
        for (allowed, _), count in members.items():
            point, time = points[allowed], points[allowed].time
            groups, rest = divmod(count, point.inputs_per_pass)
            full[allowed] += groups
            seconds += time.per_input * count + time.per_pass * (groups + (rest > 0))
            seconds += time.per_call * (point.inputs_per_pass > 1)
        for point, groups in zip(points, full, strict=True):
            seconds += point.time.per_call * -(-groups // passes)
        return seconds


class WaitingLine(Sequence[QueuedInput]):
    """An ordered queue; ``blocks`` hold its inputs."""

    def __init__(self, inputs: Iterable[QueuedInput] = ()) -> None:
        self.blocks: list[Block] = []
        self._count = 0
        self.add(list(inputs))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[QueuedInput]:
        return chain.from_iterable(block.inputs for block in self.blocks)

    def __getitem__(self, index: Any) -> Any:
        """Find one input fast at both ends, or any others."""
        if index == 0 and self.blocks:
            return self.blocks[0].inputs[0]
        if index == -1 and self.blocks:
            return self.blocks[-1].inputs[-1]
        return list(self)[index]

    def add(self, inputs: Sequence[QueuedInput]) -> None:
        """Add inputs that will be neighbours, such as those of one request, in order."""
        if not inputs:
            return
        self._count += len(inputs)
        at = self.find(inputs[0].place)
        if at < len(self.blocks):
            old = self.blocks[at].inputs
            cut = bisect_left(old, inputs[0].place, key=lambda queued: queued.place)
            held = [*old[:cut], *inputs, *old[cut:]]
            parts = -(-len(held) // MOST)
            size = -(-len(held) // parts)  # halves: both can grow
        else:
            at = max(at - 1, 0)
            held = [*(self.blocks[at].inputs if self.blocks else ()), *inputs]
            size = MOST
        rest = iter(held)
        made = [Block(part) for part in iter(lambda: list(islice(rest, size)), [])]
        self.blocks[at : at + 1] = made

    def bounds(
        self, points: Sequence[ServedPoint], index: int, passes: int, tenant: str | None = None
    ) -> list[float]:
        """Bound the seconds of every block at an operating point, in jobs of some passes."""
        asked = (index, passes, tenant)
        for block in self.blocks:
            if asked not in block.bounds:
                block.bounds[asked] = block.bound(points, index, passes, tenant)
        return [block.bounds[asked] for block in self.blocks]

    def find(self, place: Place) -> int:
        """Find the first block that ends at this place or behind it."""
        return bisect_left(self.blocks, place, key=lambda block: block.last)

    def remove(
        self, leaves: Callable[[QueuedInput], bool], first: Place, last: Place
    ) -> list[QueuedInput]:
        """Remove some of the inputs between two places, and give them back."""
        gone: list[QueuedInput] = []
        start = end = self.find(first)
        kept: list[list[QueuedInput]] = []
        while end < len(self.blocks) and self.blocks[end].inputs[0].place <= last:
            parts: tuple[list[QueuedInput], list[QueuedInput]] = ([], [])
            for queued in self.blocks[end].inputs:
                parts[leaves(queued)].append(queued)
            gone += parts[True]
            if kept and len(kept[-1]) + len(parts[False]) <= MOST:
                kept[-1] += parts[False]
            else:
                kept.append(parts[False])
            end += 1
        if not gone:
            return gone
        if kept and end < len(self.blocks):  # many small blocks would take as long as many inputs
            behind = self.blocks[end].inputs
            if len(kept[-1]) + len(behind) <= MOST // 2:
                kept[-1] += behind
                end += 1
        self.blocks[start:end] = [Block(inputs) for inputs in kept if inputs]
        self._count -= len(gone)
        return gone
