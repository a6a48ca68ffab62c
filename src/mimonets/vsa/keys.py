r"""Draw stream keys. MIMONets, section 2 and appendix A.1.

Every function takes a ``torch.Generator``: the same generator state gives the same keys. Keys are
quasi-orthogonal with high probability, and the more so the larger their dimension is:

.. math:: P(|\cos(a, b)| \ge \alpha) \le 2 e^{-D \alpha^2 / 2} \quad\text{(bipolar keys)}
"""

import math

import torch
from torch import Generator, Tensor

# s streams   d key dimension


def bipolar_keys(
    num_streams: int,
    dim: int,
    *,
    generator: Generator | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Draw (s, d) keys of independent fair signs, as MIMOFormer uses with the Hadamard product.

    Gayler, "Multiplicative binding, representation operators & analogy", 1998 (MAP).

    >>> keys = bipolar_keys(3, 8, generator=torch.Generator().manual_seed(0))
    >>> keys.shape, keys.abs().unique().tolist()
    (torch.Size([3, 8]), [1.0])
    """
    _check_size(num_streams, dim)
    bits = torch.randint(2, (num_streams, dim), generator=generator, device=_device(generator))
    return (2 * bits - 1).to(dtype or torch.get_default_dtype())


def gaussian_keys(
    num_streams: int,
    dim: int,
    *,
    generator: Generator | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""Draw (s, d) keys with independent entries, as MIMOConv starts from.

    .. math:: a_c \sim \mathcal{N}(0, 1/D)

    The norm of such a key is close to 1, so circular convolution with it is close to an isometry.

    Plate, "Holographic Reduced Representations", IEEE Trans. Neural Networks, 1995 (HRR).

    >>> keys = gaussian_keys(2, 10_000, generator=torch.Generator().manual_seed(0))
    >>> keys.norm(dim=1).round(decimals=1).tolist()
    [1.0, 1.0]
    """
    _check_size(num_streams, dim)
    return _randn(num_streams, dim, generator=generator, dtype=dtype) / math.sqrt(dim)


def unitary_keys(
    num_streams: int,
    dim: int,
    *,
    generator: Generator | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""Draw (s, d) keys whose spectrum has modulus 1 everywhere.

    .. math:: a = \mathrm{DFT}^{-1}(z), \quad |z_f| = 1

    Circular convolution with a unitary key is an exact isometry, and its approximate inverse is
    exact. Plate 1995, section VII.

    >>> keys = unitary_keys(2, 7, generator=torch.Generator().manual_seed(0))
    >>> torch.fft.fft(keys).abs().allclose(torch.ones(2, 7))
    True
    """
    _check_size(num_streams, dim)
    # The spectrum of real white noise is symmetric by itself, real at frequency 0 and, for even
    # dimensions, at the highest one. Keeping only its phase leaves the key real.
    noise = _randn(num_streams, dim, generator=generator, dtype=dtype)
    spectrum = torch.fft.rfft(noise)
    return torch.fft.irfft(spectrum / spectrum.abs(), n=dim)


def matrix_keys(
    num_streams: int,
    dim: int,
    *,
    generator: Generator | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""Draw (s, d, d) matrix keys with independent entries of variance 1/D.

    Gallant & Okaywe, "Representing objects, relations, and sequences", 2013 (MBAT).
    """
    _check_size(num_streams, dim)
    return _randn(num_streams, dim, dim, generator=generator, dtype=dtype) / math.sqrt(dim)


def slot_keys(
    num_streams: int,
    dim: int,
    *,
    generator: Generator | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""Draw (s, d, d) matrix keys whose streams do not overlap: each owns d / s of the dimensions.

    .. math:: \langle A^{(i)} x, A^{(j)} y \rangle = 0 \quad \text{for all } x, y
        \text{ and } i \ne j

    A stream keeps only d / s projections of its input, and shares nothing with the others: the far
    end from keys that keep everything and are only quasi-orthogonal. A superposition has the same
    variance as with :func:`matrix_keys`, and training may move the keys anywhere.

    >>> slot_keys(2, 4).abs().sum(dim=-1) > 0
    tensor([[ True,  True, False, False],
            [False, False,  True,  True]])
    """
    _check_size(num_streams, dim)
    if dim < num_streams:
        raise ValueError(
            f"{num_streams} streams cannot each own one of {dim} dimensions: use at least "
            f"{num_streams} dimensions, or keys that overlap."
        )
    keys = matrix_keys(num_streams, dim, generator=generator, dtype=dtype)
    owner = torch.arange(dim, device=keys.device) * num_streams // dim
    own = owner == torch.arange(num_streams, device=keys.device)[:, None]  # s d
    return keys * own.unsqueeze(-1) * math.sqrt(num_streams)


def _randn(*shape: int, generator: Generator | None, dtype: torch.dtype | None) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=dtype, device=_device(generator))


def _device(generator: Generator | None) -> torch.device | None:
    """Where to draw: a generator belongs to one device; without one, PyTorch's default device."""
    return None if generator is None else generator.device


def _check_size(num_streams: int, dim: int) -> None:
    if num_streams < 1 or dim < 1:
        raise ValueError(
            f"Cannot draw {num_streams} stream keys of dimension {dim}: both must be at least 1."
        )
