"""One batch on its way through a step: cut to size, mixed, split into parts."""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mimonets.evaluation.accuracy import IGNORED, Batches

# b batch   t tokens


@dataclass(frozen=True)
class Batch:
    """Inputs with their labels, and with mixup the labels of what was mixed in."""

    inputs: Tensor
    labels: Tensor
    mask: Tensor | None = None  # sequences only
    mixed_in: Tensor | None = None  # labels of the partners, like labels
    share: float = 1.0  # how much of an input is its own; the rest is its partner's

    @classmethod
    def of(cls, parts: tuple[Tensor, ...], device: torch.device, count: int) -> "Batch":
        """Take the first ``count`` inputs of what a batches object yields to a device."""
        inputs, *mask, labels = (part[:count].to(device, non_blocking=True) for part in parts)
        return cls(inputs, labels, mask[0] if mask else None)

    def mix(self, share: float) -> "Batch":
        r"""Mix every input with another one of the batch.

        .. math:: \tilde x_i = \lambda x_i + (1 - \lambda) x_{\pi(i)}

        Zhang et al., "mixup: beyond empirical risk minimization", ICLR 2018. It happens before
        inputs are grouped, so a group holds as many inputs as ever, each of them a mixture.
        """
        if share == 1.0:
            return self
        order = torch.randperm(len(self.inputs)).to(self.inputs.device)
        return replace(
            self,
            inputs=torch.lerp(self.inputs[order], self.inputs, share),
            mixed_in=self.labels[order],
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
        groups = -(-len(self.inputs) // group)
        size = -(-groups // parts) * group
        return [
            replace(
                self,
                inputs=self.inputs[start : start + size],
                labels=self.labels[start : start + size],
                mask=None if self.mask is None else self.mask[start : start + size],
                mixed_in=None if self.mixed_in is None else self.mixed_in[start : start + size],
            )
            for start in range(0, len(self.inputs), size)
        ]

    @property
    def scored(self) -> int:
        """How many answers count: inputs, or tokens that have a label."""
        return len(self.labels) if self.labels.ndim == 1 else int((self.labels != IGNORED).sum())

    def arguments(self) -> dict[str, Any]:
        """Give what a model takes beside the inputs."""
        return {} if self.mask is None else {"mask": self.mask}


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
