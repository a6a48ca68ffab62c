r"""What ReLU features compute: their kernel in closed form. MIMONets, appendix C.2.

Every function takes the cosine :math:`\rho` of query and key as a number and returns the kernel
for unit vectors; for others multiply by :math:`\|x\| \|y\|`, and by :math:`1/\sqrt D` for the
features of MIMOFormer.
"""

import math

EXPONENT = math.log2(math.pi)  # 1.65: makes the approximation meet the kernel at 0 and 1


def relu_kernel(cosine: float) -> float:
    r"""Give the kernel of ReLU features.

    .. math::
        \frac{E[\mathrm{ReLU}(w^T x) \, \mathrm{ReLU}(w^T y)]}{\|x\| \|y\|}
        = \frac{\rho + g(\rho)}{4}, \qquad
        g(\rho) = \frac{2}{\pi} \Big[\sqrt{1 - \rho^2} + |\rho| \arctan
        \frac{|\rho|}{\sqrt{1 - \rho^2}}\Big], \qquad w \sim \mathcal{N}(0, I_D)

    The paper derives it anew. It is half the arc-cosine kernel of degree 1 of Cho & Saul, "Kernel
    methods for deep learning", NeurIPS 2009:
    :math:`(\sin\theta + (\pi - \theta) \cos\theta) / 2\pi` with :math:`\rho = \cos\theta`.

    >>> relu_kernel(-1.0), round(relu_kernel(0.0), 4), relu_kernel(1.0)  # 0, 1 / 2 pi, 1 / 2
    (0.0, 0.1592, 0.5)
    """
    rho = _check_cosine(cosine)
    root = math.sqrt(1 - rho**2)
    g = 2 / math.pi * (root + abs(rho) * math.atan2(abs(rho), root))  # atan2: rho may be 1
    return (rho + g) / 4


def relu_kernel_approximation(cosine: float) -> float:
    r"""Give the paper's approximation of that kernel by a power.

    .. math:: \frac{(\rho + 1)^{\log_2 \pi}}{2 \pi}

    It meets the kernel at -1, 0 and 1 and is within 0.0073 of it in between. Near -1, where
    the kernel falls as the power 3/2, its relative error grows to 100 %.

    >>> relu_kernel_approximation(-1.0), round(relu_kernel_approximation(0.0), 4)
    (0.0, 0.1592)
    >>> round(relu_kernel(0.5), 4), round(relu_kernel_approximation(0.5), 4)
    (0.3045, 0.3109)
    """
    return float((_check_cosine(cosine) + 1) ** EXPONENT / (2 * math.pi))


def softmax_kernel(cosine: float, scale: float = 1.0) -> float:
    r"""Give the softmax kernel, scaled to meet the ReLU kernel at cosine 1.

    .. math:: \tfrac12 e^{s (\rho - 1)}, \qquad s = \|x\| \|y\| / \sqrt D

    The paper's figure does not say how its softmax curve is scaled; this is ours. Attention divides
    by the sum over tokens, so a constant factor does not matter.

    >>> softmax_kernel(1.0), round(softmax_kernel(0.0), 4)
    (0.5, 0.1839)
    """
    return math.exp(scale * (_check_cosine(cosine) - 1)) / 2


def superposed_relu_kernel(cosine: float, grid: tuple[int, int]) -> float:
    r"""Give the ReLU kernel of two superpositions, when their streams do not interfere at all.

    .. math:: \sqrt{M N} \; \kappa\big(\rho / \sqrt{M N}\big)

    N keys in one superposition have the norm :math:`\sqrt N`, M queries :math:`\sqrt M`, and their
    product is still :math:`\rho`. The softmax kernel depends on the product alone; this one
    does not. So what appendix D proves for the product does not carry over to ReLU features: even
    without crosstalk the kernel flattens, from a ratio of pi between an aligned and an orthogonal
    pair to little more than 1. Not in the paper. Exact in the limit of large D, for unit vectors.

    >>> [round(superposed_relu_kernel(1.0, grid) / superposed_relu_kernel(0.0, grid), 2)
    ...  for grid in ((1, 1), (2, 2), (4, 4))]
    [3.14, 1.91, 1.42]
    """
    if min(grid) < 1:
        raise ValueError(f"grid={grid} does not fit: both sides must be at least 1.")
    size = math.sqrt(grid[0] * grid[1])
    return size * relu_kernel(_check_cosine(cosine) / size)


def _check_cosine(cosine: float) -> float:
    if not abs(cosine) <= 1 + 1e-9:  # a cosine that was computed may be rounded beyond 1
        raise ValueError(f"cosine={cosine} is out of range: pass a number from -1 to 1.")
    return min(max(cosine, -1.0), 1.0)
