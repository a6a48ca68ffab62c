"""Measure how much memory a pass needs at its peak."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


def peak_memory(run: Callable[[], object]) -> int:
    """Count the bytes of all tensors that ``run`` makes, at the moment they are most.

    On CUDA the allocator is asked. On a CPU every operation is watched: tensors that live are
    added up, those that were freed are not. Scratch space inside a single operation is not seen.

    >>> peak_memory(lambda: torch.zeros(1000).exp() + 1)  # two of 4000 bytes live at a time
    8000
    """
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    with LiveTensors() as live:
        run()
    return live.peak


class LiveTensors(TorchDispatchMode):
    """Adds up the bytes of tensors that live while operators run, on a CPU or the meta device."""

    def __init__(self, slack: float = 0.0) -> None:
        super().__init__()
        self.peak = 0
        self.slack = slack  # fraction of the peak that may be missed: counting is faster then
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.foreign: set[int] = set()  # storages that were there before: weights and inputs
        self._most = 0  # bytes of what lives, and of what was freed since it was last counted

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = list(tensors_in((args, kwargs)))
        for tensor in inputs:
            pointer = tensor.untyped_storage()._cdata
            if pointer not in self.live:
                self.foreign.add(pointer)
        output = func(*args, **kwargs)
        outputs = [output] if isinstance(output, Tensor) else list(tensors_in(output))
        for tensor in outputs:
            storage = tensor.untyped_storage()
            if storage._cdata not in self.live and storage._cdata not in self.foreign:
                self.live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
                self._most += storage.nbytes()
        if self._most > (1 + self.slack) * self.peak:
            self.live = {key: entry for key, entry in self.live.items() if not entry[0].expired()}
            self._most = sum(size for _, size in self.live.values())
            self.peak = max(self.peak, self._most)
        self.after(func, args, kwargs, output, [*inputs, *outputs])
        return output

    def after(
        self, func: Any, args: Any, kwargs: Any, output: Any, tensors: Sequence[Tensor]
    ) -> None:
        """Count what else a subclass counts of an operator and the tensors it read and wrote."""


def tensors_in(values: Any) -> Iterator[Tensor]:
    """List the tensors in nested tuples, lists and dicts."""
    return (value for value in tree_iter(values) if isinstance(value, Tensor))
