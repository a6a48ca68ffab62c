"""What a step would ask of a GPU: operators and bytes, counted on the meta device."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Cost(TorchDispatchMode):
    """Count operators that launch a kernel, and the bytes they read and write.

    Views and allocations launch none. Caches are left out: every operand counts each time.
    """

    def __init__(self):
        super().__init__()
        self.operators = 0
        self.gigabytes = 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        if not (func.is_view or name == "aten::_unsafe_view" or "empty" in name):
            read = {id(part): part for part in tree_leaves((args, kwargs))}.values()
            self.operators += 1
            self.gigabytes += sum(map(_bytes, [*read, *tree_leaves(result)])) / 1e9
        return result


def _bytes(part) -> int:
    return part.numel() * part.element_size() if isinstance(part, Tensor) else 0


def on_meta(model_class, config):
    """Build a model without memory, in training mode."""
    with torch.device("meta"):
        return model_class(config).train()
