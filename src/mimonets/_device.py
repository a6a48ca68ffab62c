"""Which device to run on, with how many threads, and how images lie in its memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


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
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)


@contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Run PyTorch on so many threads for a while; None changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
