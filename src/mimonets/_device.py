"""Which device to run on, with how many threads, and how images lie in its memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def choose_device(name: str | torch.device | None = None) -> torch.device:
    """Find the device of a name; without one, a CUDA device if there is any, else the CPU.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(
            f"There is no kind of device {str(name)!r}: use cpu, or cuda, cuda:1, mps on a machine "
            f"that has one."
        ) from None
    there = {
        "cpu": 1,
        "meta": 1,
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
    }.get(device.type, 0)
    if (device.index or 0) >= there:
        raise ValueError(
            f"This machine has no device {str(name)!r} that PyTorch {torch.__version__} can use: "
            f"choose cpu{', or one of cuda:0 to cuda:' + str(there - 1) if there else ''}."
        )
    return device


def to_channels_last(network: nn.Module) -> None:
    """Lay the weights of 2-D convolutions channels last, in place.

    ``network.to(memory_format=torch.channels_last)`` does so too, but fails at tensors of five
    dimensions, such as those of a 3-D convolution. Those stay as they are.
    """
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.dim() == 4:
            tensor.data = _channels_last(tensor.data)


def has_channels_last(x: Tensor) -> bool:
    """Whether maps (..., d, h, w) lie channels last in memory, as a GPU wants them.

    >>> has_channels_last(torch.zeros(2, 5, 4, 4).contiguous(memory_format=torch.channels_last))
    True
    """
    return x.stride(-1) == x.shape[-3] > 1 and x.stride(-3) == 1


def laid_out_like(x: Tensor, maps: Tensor) -> Tensor:
    """Give maps (b, d, h, w) the memory layout that the features x, (..., d, h, w), have."""
    return _channels_last(maps) if has_channels_last(x) else maps


def keep_layout(maps: Tensor) -> Tensor:
    """Let the gradient of maps (b, d, h, w) have their memory layout; returns the maps.

    Views between here and the loss may turn it around. On a CPU, the backward passes of ReLU and
    batch norm take 12 to 30 times as long where gradient and maps lie differently.
    """
    # Compiled code chooses layouts by itself.
    if maps.requires_grad and has_channels_last(maps) and not torch.compiler.is_compiling():
        maps.register_hook(_channels_last)
    return maps


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


@contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Run PyTorch on so many threads for a while; None changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
