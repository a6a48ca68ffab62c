"""Read each stream's answer out of the superposition. MIMONets, section 3, appendix A.1 (MBAT)."""

import torch.nn.functional as F
from torch import Generator, Tensor, nn

from mimonets.vsa import average_copies, matrix_keys

# g groups   a active inputs   s streams   d features


class StreamUnbinding(nn.Module):
    r"""Unbind with a trained matrix per stream and average the copies of each input.

    .. math:: y^{(k)} = \mathrm{ReLU}(\tilde A^{(k)} h + b^{(k)})

    The paper writes only the matrix; its reported accuracies come from matrix, bias and ReLU, which
    is the default here. All matrices are applied in one GEMM from D to N * D features.

    Args:
        features: D, the size of the pooled superposition.
        num_streams: N.
        relu: whether a ReLU follows.
    """

    def __init__(
        self,
        features: int,
        num_streams: int,
        *,
        relu: bool = True,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.relu = relu
        self.weight = nn.Parameter(matrix_keys(num_streams, features, generator=generator))
        self.bias = nn.Parameter(self.weight.new_zeros(num_streams, features))

    def forward(self, pooled: Tensor, active_streams: int) -> Tensor:
        """Unbind (g, d) -> (g, a, d)."""
        answers = F.linear(pooled, self.weight.flatten(0, 1), self.bias.flatten())
        if self.relu:
            answers = answers.relu()
        return average_copies(answers.unflatten(1, self.bias.shape), active_streams)
