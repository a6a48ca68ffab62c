"""One batch on its way through a step: cut to size, mixed, split into parts."""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mimonets._answers import as_answers, each
from mimonets.data.interface import IGNORED, Batches

# b batch   t tokens


@dataclass(frozen=True)
class Batch:
    """Inputs with their labels, and with mixup the labels of what was mixed in.

    Labels are a tensor with the inputs in front, or a tuple or dict of such tensors.
    """

    inputs: Tensor
    labels: Any
    mask: Tensor | None = None  # sequences only
    mixed_in: Any = None  # labels of the partners, like labels
    share: float = 1.0  # how much of an input is its own; the rest is its partner's

    @classmethod
    def of(cls, parts: tuple[Tensor, ...], device: torch.device) -> "Batch":
        """Take what a batches object yields to a device."""
        *inputs, labels = parts
        x, *mask = (part.to(device, non_blocking=True) for part in inputs)
        labels = each(lambda part: part.to(device, non_blocking=True), as_answers(labels))
        return cls(x, labels, mask[0] if mask else None)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, rows: slice) -> "Batch":
        """Keep some of the inputs."""
        return replace(
            self,
            inputs=self.inputs[rows],
            labels=each(lambda part: part[rows], self.labels),
            mask=None if self.mask is None else self.mask[rows],
            mixed_in=None
            if self.mixed_in is None
            else each(lambda part: part[rows], self.mixed_in),
        )

    def mix(self, share: float, seed: int, rows: slice = slice(None)) -> "Batch":
        r"""Mix every input with another one of the batch, and keep the mixtures at ``rows``.

        .. math:: \tilde x_i = \lambda x_i + (1 - \lambda) x_{\pi(i)}

        Zhang et al., "mixup: beyond empirical risk minimization", ICLR 2018. It happens before
        inputs are grouped, so a group holds as many inputs as ever, each of them a mixture.
        """
        if share == 1.0:
            return self[rows]
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self), generator=generator)[rows].to(self.inputs.device)
        return replace(
            self[rows],
            inputs=torch.lerp(self.inputs[order], self.inputs[rows], share),
            mixed_in=each(lambda part: part[order], self.labels),
            share=share,
        )

    def naming_tokens(self) -> "Batch":
        """Ask for the tokens themselves, all real ones, in place of the labels."""
        tokens = self.inputs
        labels = tokens if self.mask is None else tokens.where(self.mask, IGNORED)
        return replace(self, labels=labels)

    def split(self, parts: int, group: int) -> list["Batch"]:
        """Cut into at most ``parts`` pieces of whole groups, for gradient accumulation."""
        if parts == 1:
            return [self]
        groups = -(-len(self) // group)
        size = -(-groups // parts) * group
        return [self[start : start + size] for start in range(0, len(self), size)]

    @property
    def scored(self) -> Tensor:
        """How many answers count: inputs, or tokens that have a label. Stays on the device."""
        tokens = isinstance(self.labels, Tensor) and self.labels.ndim > 1
        if not tokens or self.labels.is_floating_point():
            return torch.full((), float(len(self)), device=self.inputs.device)
        return (self.labels != IGNORED).sum().float()

    def arguments(self) -> dict[str, Any]:
        """Give what a model takes beside the inputs."""
        return {} if self.mask is None else {"mask": self.mask}


def gather(fabric: Any, batch: Batch, *, even: bool) -> Batch:
    """Put the images of all processes together, in the order of their ranks.

    ``even`` promises that every process brings as many; else they tell each other first.
    """
    counts = [len(batch)] * fabric.world_size
    if not even:
        counts = fabric.all_gather(torch.tensor(len(batch), device=fabric.device)).tolist()

    def collect(part: Tensor) -> Tensor:
        padding = part.new_zeros((max(counts) - len(part), *part.shape[1:]))
        everything = fabric.all_gather(torch.cat([part, padding]))
        return torch.cat([rows[:count] for rows, count in zip(everything, counts, strict=True)])

    return Batch(collect(batch.inputs), each(collect, batch.labels))


def shard(batches: Batches, rank: int, world_size: int) -> Batches:
    """Give process ``rank`` its share: of each ``world_size`` neighbouring batches, its own.

    So one step of all processes together holds the inputs that one process would see in
    ``world_size`` batches. An object that has attributes ``rank`` and ``world_size`` does it by
    itself, without making the batches of the other processes.
    """
    if world_size == 1:
        return batches
    if hasattr(batches, "rank") and hasattr(batches, "world_size"):
        mine = copy(batches)
        vars(mine).update(rank=rank, world_size=world_size)
        return mine
    return _Shard(batches, rank, world_size)


@dataclass(frozen=True)
class _Shard:
    batches: Batches
    place: int
    processes: int

    def __len__(self) -> int:
        return len(self.batches) // self.processes

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, ...]]:
        wanted = range(start * self.processes, len(self) * self.processes)
        everything = self.batches.epoch(epoch, start * self.processes)
        for index, batch in zip(wanted, everything, strict=False):
            if index % self.processes == self.place:
                yield batch
