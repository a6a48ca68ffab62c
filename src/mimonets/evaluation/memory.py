"""Measure how much memory a pass needs at its peak."""

from collections.abc import Callable
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
    with _LiveTensors() as live:
        run()
    return live.peak


class _LiveTensors(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.foreign: set[int] = set()  # storages that were there before: weights and inputs

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for tensor in tree_iter((args, kwargs)):
            if isinstance(tensor, Tensor):
                pointer = tensor.untyped_storage()._cdata
                if pointer not in self.live:
                    self.foreign.add(pointer)
        output = func(*args, **(kwargs or {}))
        self.live = {key: entry for key, entry in self.live.items() if not entry[0].expired()}
        for tensor in tree_iter(output):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.live and storage._cdata not in self.foreign:
                    self.live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))
        return output
