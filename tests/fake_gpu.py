"""A GPU that computes nothing: shapes and devices only, so that a forgotten device raises.

Fake tensors of PyTorch do it, except that a build without CUDA refuses to index and copy them.
Here indexing goes through the meta device. Forward passes only: backward aborts the process.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode


class _IndexOnMeta(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is Tensor.copy_:  # allowed between devices
            return args[0]
        if function not in (Tensor.__getitem__, Tensor.__setitem__) or args[0].device.type == "cpu":
            return function(*args, **(kwargs or {}))
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        found = _hollow(args[0])[tuple(_hollow(part) for part in index)]
        if function is Tensor.__getitem__:
            return torch.empty(found.shape, dtype=found.dtype, device=args[0].device)
        assert not isinstance(args[2], Tensor) or args[2].device in (args[0].device, "cpu")
        return None


def _hollow(part):
    if not isinstance(part, Tensor):
        return part
    return torch.empty(part.shape, dtype=part.dtype, device="meta")


@contextmanager
def fake_gpu() -> Iterator[None]:
    """Let tensors be made on a GPU that is not there, and used without gradients."""
    with FakeTensorMode(), _IndexOnMeta(), torch.no_grad():
        yield


def move_to_fake_gpu(model: nn.Module) -> nn.Module:
    """Replace the weights of a model, for example one on the meta device; inside fake_gpu."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(_on_gpu(parameter), requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = _on_gpu(buffer)
    return model


def _on_gpu(value: Tensor) -> Tensor:
    return torch.empty(value.shape, dtype=value.dtype, device="cuda")
