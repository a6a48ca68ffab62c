"""One batch on its way through a step: cut to size, mixed, split into parts."""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mimonets._answers import as_answers, each
from mimonets.data.interface import IGNORED

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
    share: Tensor | float = 1.0  # how much of an input is its own; the rest is its partner's

    @classmethod
    def of(cls, parts: tuple[Any, ...], device: torch.device) -> "Batch":
        """Take what a batches object yields to a device; to a GPU without waiting for it.

        A GPU wants images with their channels last.
        """

        def move(part: Tensor) -> Tensor:
            if device.type == "cuda" and not part.is_cuda:
                part = part.pin_memory()
            return part.to(device, non_blocking=True)

        *inputs, labels = parts
        x, *mask = map(move, inputs)
        if device.type != "cpu" and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return cls(x, each(move, as_answers(labels)), mask[0] if mask else None)

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

    def mix(self, share: float, seed: int) -> "Batch":
        r"""Mix every input with another one of the batch.

        .. math:: \tilde x_i = \lambda x_i + (1 - \lambda) x_{\pi(i)}

        Zhang et al., "mixup: beyond empirical risk minimization", ICLR 2018. It happens before
        inputs are grouped, so a group holds as many inputs as ever, each of them a mixture.
        """
        if share == 1.0:
            return self
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self), generator=generator).to(self.inputs.device)
        return replace(
            self,
            inputs=torch.lerp(self.inputs[order], self.inputs, share),
            mixed_in=each(lambda part: part[order], self.labels),
            # A tensor: a number would make torch.compile start again at every step.
            share=torch.full((), share, device=self.inputs.device),
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

    def part_of(self, rank: int, processes: int, group: int) -> "Batch | None":
        """Cut out the groups that one of several processes works on; together they have them all.

        None if the groups cannot be shared: fewer than processes, or not all of them whole. A
        short group is filled with copies from its batch, which a part would not have.
        """
        groups, left_over = divmod(len(self), group)
        if groups < processes or left_over:
            return None
        first, last = (groups * number // processes * group for number in (rank, rank + 1))
        return self[first:last]

    def widened(self, step: int) -> "Batch":
        """Pad sequences to a multiple of ``step`` tokens, so that few widths occur."""
        missing = -self.inputs.shape[-1] % step
        if self.mask is None or not missing:
            return self
        per_token = isinstance(self.labels, Tensor) and self.labels.shape == self.inputs.shape
        return replace(
            self,
            inputs=F.pad(self.inputs, (0, missing)),
            mask=F.pad(self.mask, (0, missing)),
            labels=F.pad(self.labels, (0, missing), value=IGNORED) if per_token else self.labels,
        )

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

    def tensors(self) -> dict[str, Any]:
        """Give all fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
