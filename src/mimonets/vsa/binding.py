"""Bind a vector to a key, and unbind it again. MIMONets, sections 2 and 3, appendix A.1.

Three families, each acting on the last axis:

* Hadamard product (MAP): cheap, its own inverse for bipolar keys. MIMOFormer.
* Circular convolution (HRR): by FFT, or as a circulant matrix. MIMOConv's binding.
* Matrix product (MBAT): as many free parameters as a matrix has. MIMOConv's unbinding.
"""

import torch
from torch import Tensor

# c, j positions along the key   ... anything


def hadamard_product(x: Tensor, key: Tensor) -> Tensor:
    r"""Bind ``x`` to ``key``, or unbind it, by the element-wise product.

    .. math:: (x \odot a)_c = x_c \, a_c

    For bipolar keys binding twice gives back the input, since :math:`a_c^2 = 1`.

    >>> x, key = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, -1.0, -1.0])
    >>> hadamard_product(hadamard_product(x, key), key)
    tensor([1., 2., 3.])
    """
    _check_last_axis(x, key)
    return x * key


def circular_convolution(x: Tensor, key: Tensor) -> Tensor:
    r"""Bind ``x`` to ``key`` by circular convolution over the last axis.

    .. math:: (x \circledast a)_c = \sum_j x_j \, a_{(c - j) \bmod D}

    Plate, "Holographic Reduced Representations", IEEE Trans. Neural Networks, 1995. This is the
    FFT form; :func:`circulant` gives the same as a matrix, which is what the layers use.

    Args:
        x: (..., d).
        key: (..., d), broadcast against ``x``.

    >>> x, shift = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, 0.0])
    >>> circular_convolution(x, shift)
    tensor([3., 1., 2.])
    """
    _check_last_axis(x, key)
    spectrum = torch.fft.rfft(x) * torch.fft.rfft(key)
    return torch.fft.irfft(spectrum, n=x.shape[-1])  # n: odd lengths need it


def circular_correlation(x: Tensor, key: Tensor) -> Tensor:
    r"""Unbind ``x`` from ``key`` with the approximate inverse of the key.

    .. math:: (x \star a)_c = \sum_j x_j \, a_{(j - c) \bmod D}

    Exact for unitary keys, noisy for Gaussian ones. It equals circular convolution with
    :func:`approximate_inverse` of the key.

    >>> x, shift = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, 0.0])
    >>> circular_correlation(circular_convolution(x, shift), shift)
    tensor([1., 2., 3.])
    """
    _check_last_axis(x, key)
    spectrum = torch.fft.rfft(x) * torch.fft.rfft(key).conj()
    return torch.fft.irfft(spectrum, n=x.shape[-1])


def approximate_inverse(key: Tensor) -> Tensor:
    r"""Reverse a key in time: :math:`a^*_c = a_{-c \bmod D}`, Plate's involution.

    >>> approximate_inverse(torch.tensor([1.0, 2.0, 3.0]))
    tensor([1., 3., 2.])
    """
    return key.flip(-1).roll(1, dims=-1)


def exact_inverse(key: Tensor) -> Tensor:
    r"""Invert a key exactly: :math:`a^{-1} = \mathrm{DFT}^{-1}(1 / \mathrm{DFT}(a))`.

    Where the key's spectrum is small the inverse is large and amplifies noise, which is why the
    approximate inverse is the usual choice for keys that are not unitary.

    >>> key = torch.tensor([2.0, 1.0, 0.0])
    >>> circular_convolution(key, exact_inverse(key)).round(decimals=5).abs()
    tensor([1., 0., 0.])
    """
    return torch.fft.irfft(1 / torch.fft.rfft(key), n=key.shape[-1])


def circulant(key: Tensor) -> Tensor:
    r"""Write a key as the matrix that binds with it: (..., d) -> (..., d, d).

    .. math:: A_{cj} = a_{(c - j) \bmod D} \quad\Rightarrow\quad x \circledast a = A x

    >>> circulant(torch.tensor([1.0, 2.0, 3.0]))
    tensor([[1., 3., 2.],
            [2., 1., 3.],
            [3., 2., 1.]])
    """
    position = torch.arange(key.shape[-1], device=key.device)
    return key[..., (position[:, None] - position[None, :]) % key.shape[-1]]


def matrix_bind(x: Tensor, key: Tensor) -> Tensor:
    r"""Bind ``x`` to a matrix key: :math:`(x \odot A)_c = \sum_j A_{cj} x_j`.

    Args:
        x: (..., d).
        key: (..., d, d), its leading axes broadcast against those of ``x``.

    >>> matrix_bind(torch.tensor([1.0, 2.0]), torch.tensor([[0.0, 1.0], [3.0, 0.0]]))
    tensor([2., 3.])
    """
    _check_matrix(x, key)
    return (key @ x.unsqueeze(-1)).squeeze(-1)


def matrix_unbind(x: Tensor, key: Tensor) -> Tensor:
    r"""Undo :func:`matrix_bind`: :math:`A^{-1} x`, by solving rather than inverting.

    MIMOConv does not use this: it learns unbinding matrices of their own.

    >>> x, key = torch.tensor([1.0, 2.0]), torch.tensor([[0.0, 1.0], [3.0, 0.0]])
    >>> matrix_unbind(matrix_bind(x, key), key)
    tensor([1., 2.])
    """
    _check_matrix(x, key)
    return torch.linalg.solve(key, x.unsqueeze(-1)).squeeze(-1)


def _check_last_axis(x: Tensor, key: Tensor) -> None:
    if x.shape[-1:] != key.shape[-1:]:
        raise ValueError(
            f"x of shape {tuple(x.shape)} and key of shape {tuple(key.shape)} differ in their last "
            f"axis: draw the key with dim={x.shape[-1] if x.ndim else 1}."
        )


def _check_matrix(x: Tensor, key: Tensor) -> None:
    if key.ndim < 2 or key.shape[-2:] != (x.shape[-1], x.shape[-1]):
        raise ValueError(
            f"A matrix key for x of shape {tuple(x.shape)} ends in "
            f"({x.shape[-1]}, {x.shape[-1]}), but this key has shape {tuple(key.shape)}."
        )
