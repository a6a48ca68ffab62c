"""What training and evaluation ask of data: batches that follow from the number of the epoch.

Everything that keeps to :class:`Batches` will do; a PyTorch ``DataLoader`` becomes it by
:func:`from_loader`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor

IGNORED = -100  # a label that is not scored; the default of torch's cross entropy


class Batches(Protocol):
    """Data in batches: the same ones for the same epoch, whenever they are asked for."""

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        ...

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """Yield the batches of an epoch from number ``start`` on.

        A batch is (inputs, labels), or (tokens, mask, labels) for sequences. Labels are (b,), or
        (b, t) for next tokens, with -100 where nothing is scored.
        """
        ...


def as_batches(data: Any, seed: int = 0) -> Batches:
    """Give batches as they are, and make batches of a PyTorch ``DataLoader``."""
    return data if hasattr(data, "epoch") else from_loader(data, seed)


def on_device(batches: Batches, device: torch.device) -> Batches:
    """Let batches that can, those with a method ``to``, be made on a device."""
    moved: Batches = batches.to(device) if hasattr(batches, "to") else batches
    return moved


def from_loader(loader: Any, seed: int = 0) -> Batches:
    """Make batches of a PyTorch ``DataLoader`` of (inputs, labels) or (tokens, mask, labels).

    The order of an epoch follows from its number and the seed: the random generator that the
    loader or PyTorch itself has is seeded with both, and a sampler with ``set_epoch`` is told its
    number. A loader that does not shuffle keeps its order. A run that resumes in the middle of an
    epoch reads and drops the batches before. Random changes to single items repeat exactly if they
    draw from PyTorch's generator, or in worker processes, which PyTorch seeds.

    >>> items = torch.utils.data.TensorDataset(torch.zeros(5, 3), torch.arange(5))
    >>> batches = from_loader(torch.utils.data.DataLoader(items, batch_size=2))
    >>> [labels.tolist() for _, labels in batches.epoch(0, start=1)]
    [[2, 3], [4]]
    """
    if not (hasattr(loader, "__iter__") and hasattr(loader, "__len__")):
        raise ValueError(
            f"Expected batches (len and epoch(number, start)) or a DataLoader with a length, "
            f"not a {type(loader).__name__}."
        )
    return _LoaderBatches(loader, seed)


@dataclass(frozen=True)
class _LoaderBatches:
    loader: Any
    seed: int

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, ...]]:
        set_epoch = getattr(getattr(self.loader, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        number = self.seed * 1_000_003 + epoch
        if getattr(self.loader, "generator", None) is not None:
            self.loader.generator.manual_seed(number)
        for batch in islice(_drawn_apart(self.loader, number), start, None):
            if not isinstance(batch, list | tuple) or len(batch) not in (2, 3):
                raise ValueError(
                    f"A batch must be (inputs, labels) or (tokens, mask, labels), and the loader "
                    f"gave a {type(batch).__name__}"
                    f"{f' of {len(batch)}' if isinstance(batch, list | tuple) else ''}."
                )
            yield tuple(batch)


def _drawn_apart(loader: Any, seed: int) -> Iterator[Any]:
    """Read all batches with a random state of their own, whatever is drawn in between."""
    state = torch.Generator().manual_seed(seed).get_state()
    batches = None
    while True:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            batches = iter(loader) if batches is None else batches
            found = list(islice(batches, 1))
            state = torch.get_rng_state()
        if not found:
            return
        yield found[0]
