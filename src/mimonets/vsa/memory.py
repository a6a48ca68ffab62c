"""Add vectors up, compare them, and clean a noisy one up. MIMONets, appendix A."""

import torch.nn.functional as F
from torch import Tensor


def bundle(x: Tensor, dim: int = 0) -> Tensor:
    r"""Superpose vectors by adding them up: :math:`s = \sum_i x^{(i)}`.

    >>> bundle(torch.tensor([[1.0, 2.0], [10.0, 20.0]]))
    tensor([11., 22.])
    """
    return x.sum(dim=dim)


def similarity(x: Tensor, y: Tensor) -> Tensor:
    r"""Compare every vector of ``x`` with every vector of ``y`` by the cosine of their angle.

    .. math:: \cos(x, y) = \langle x, y \rangle / (\|x\| \, \|y\|)

    Args:
        x: (..., n, d).
        y: (..., m, d).

    Returns:
        (..., n, m), between -1 and 1.

    >>> similarity(torch.eye(2), torch.tensor([[3.0, 0.0], [-5.0, 0.0]]))
    tensor([[ 1., -1.],
            [ 0.,  0.]])
    """
    return F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).mT


def cleanup(x: Tensor, dictionary: Tensor) -> tuple[Tensor, Tensor]:
    r"""Find the dictionary entry nearest to each noisy vector.

    .. math:: \hat\imath = \arg\max_i \cos(x, v^{(i)})

    Args:
        x: (..., d), for example the result of an unbinding.
        dictionary: (m, d).

    Returns:
        The index of the nearest entry and its similarity, both (...).

    >>> entries = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> index, _ = cleanup(torch.tensor([0.2, 0.9]), entries)
    >>> entries[index]
    tensor([0., 1.])
    """
    if dictionary.ndim != 2 or len(dictionary) == 0 or dictionary.shape[-1] != x.shape[-1]:
        raise ValueError(
            f"A dictionary for vectors of shape {tuple(x.shape)} has shape (entries, "
            f"{x.shape[-1]}) with at least one entry, but got {tuple(dictionary.shape)}."
        )
    nearest = similarity(x.unsqueeze(-2), dictionary).squeeze(-2).max(dim=-1)
    return nearest.indices, nearest.values
