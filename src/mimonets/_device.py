"""Which device to run on."""

import torch


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
