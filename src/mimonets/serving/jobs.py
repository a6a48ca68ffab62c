"""What waits, what runs together, and how long it takes. Pure data, without a clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mimonets.serving.modes import Mode


@dataclass(slots=True, eq=False)
class Item:
    """One input that waits. ``place`` orders the queue: priority, then deadline, then arrival."""

    arrival: float
    deadline: float
    limit: int = 10**9  # the fastest mode it may run in, as an index
    least: int = 0  # the slowest mode it may run in, as an index
    tenant: str = ""
    shares: bool = False  # may share a pass with other tenants who agreed to that too
    alone: bool = False  # deterministic: runs as a batch of one, in the slowest mode
    priority: int = 0  # smaller is served first
    number: int = 0
    owner: Any = None  # the request that it belongs to
    row: int = 0  # which of the request's inputs it is

    @property
    def place(self) -> tuple[int, float, int]:
        """Order of service: earliest deadline first within a priority."""
        return (self.priority, self.deadline, self.number)

    def mode(self, gear: int) -> int:
        """Tell in which mode it runs when the policy chose this one."""
        return 0 if self.alone else min(max(gear, self.least), self.limit)

    def neighbours(self) -> object:
        """Tell with whom it may share a pass: inputs whose answers here are equal."""
        if self.alone:
            return (self.number, self.row)
        return None if self.shares else self.tenant


@dataclass(slots=True)
class Group:
    """Inputs that share a pass, or a single one."""

    mode: int  # index of the mode it runs in
    items: list[Item]


@dataclass(slots=True)
class Job:
    """What the engine does next, until the policy is asked again."""

    gear: int  # index of the mode that the policy chose
    groups: list[Group]
    modes: Sequence[Mode] = field(repr=False)

    @property
    def items(self) -> list[Item]:
        """All inputs of the job."""
        return [item for group in self.groups for item in group.items]

    def calls(self) -> list[tuple[int, list[Item]]]:
        """List the calls of the engine as (mode, inputs).

        Full groups of one mode are one call; a short group is a call of its own, so that nobody
        joins it, and so is an input that must run alone.
        """
        merged: dict[int, list[Item]] = {}
        single: list[tuple[int, list[Item]]] = []
        for group in self.groups:
            is_full = len(group.items) == self.modes[group.mode].active_streams
            if is_full and not group.items[0].alone:
                merged.setdefault(group.mode, []).extend(group.items)
            else:
                single.append((group.mode, group.items))
        return [*merged.items(), *single]

    def predicted(self) -> float:
        """Add up the service times of all calls, uncorrected."""
        return sum(
            self.modes[mode].time.of(len(items), self.modes[mode].active_streams)
            for mode, items in self.calls()
        )


class Backlog:
    """The time that a growing set of inputs needs in one gear, in jobs of some passes each."""

    def __init__(self, modes: Sequence[Mode], gear: int, passes: int) -> None:
        self._modes, self._gear, self._passes = modes, gear, passes
        self._open: dict[object, int] = {}  # members of every group that is not full
        self._full = [0] * len(modes)
        self._now = 0.0
        self.seconds = 0.0  # never falls, though a group that gets full may save a call

    def copy(self) -> "Backlog":
        """Make another one that grows by itself."""
        made = Backlog(self._modes, self._gear, self._passes)
        made._open, made._full = self._open.copy(), self._full.copy()
        made._now, made.seconds = self._now, self.seconds
        return made

    def add(self, item: Item) -> float:
        """Add an input; returns the seconds that all of them need."""
        index = item.mode(self._gear)
        mode = self._modes[index]
        time = mode.time
        who = (index, item.neighbours())
        members = self._open.get(who, 0) + 1
        self._now += time.per_input
        if members == 1:
            self._now += time.per_pass + time.per_call
        if members == mode.active_streams:  # full groups share calls, one for each job
            if self._full[index] % self._passes:
                self._now -= time.per_call
            self._full[index] += 1
            members = 0
        self._open[who] = members
        self.seconds = max(self.seconds, self._now)
        return self.seconds
