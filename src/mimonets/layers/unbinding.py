"""Read each stream's answer out of the superposition. MIMONets, section 3, appendix A.1 (MBAT)."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from mimonets.vsa import average_copies

# g groups   a active inputs   s streams   d features

StartName = Literal["mbat", "fan-out"]


class StreamUnbinding(nn.Module):
    r"""Unbind with a trained matrix per stream and average the copies of each input.

    .. math:: y^{(k)} = \mathrm{ReLU}(\tilde A^{(k)} h + b^{(k)})

    The paper writes only the matrix; its reported accuracies come from matrix, bias and ReLU, which
    is the default here. All matrices are applied in one GEMM from D to N * D features.

    Args:
        features: D, the size of the pooled superposition.
        num_streams: N.
        outputs: size of a stream's answer; D by default.
        relu: whether a ReLU follows.
        start: how the weights are drawn: "mbat" has variance 1 / D and no bias; "fan-out", as the
            authors' code, has variance 2 / (N * D) and biases up to 1 / sqrt(D).
    """

    def __init__(
        self,
        features: int,
        num_streams: int,
        *,
        outputs: int | None = None,
        relu: bool = True,
        start: StartName = "mbat",
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.num_streams = num_streams
        self.relu = relu
        outputs = features if outputs is None else outputs
        device = None if generator is None else generator.device
        drawn = torch.randn(num_streams, outputs, features, generator=generator, device=device)
        self.weight = nn.Parameter(drawn / math.sqrt(features))  # MBAT: entries of variance 1/D
        self.bias = nn.Parameter(self.weight.new_zeros(num_streams, outputs))
        if start == "fan-out":
            bound = 1 / math.sqrt(features)
            with torch.no_grad():
                self.weight.mul_(math.sqrt(2 * features / (num_streams * outputs)))
                self.bias.uniform_(-bound, bound, generator=generator)

    def forward(self, features: Tensor, active_streams: int) -> Tensor:
        """Unbind (g, d) -> (g, a, outputs); with positions (g, ..., d) -> (g, a, ..., outputs)."""
        answers = F.linear(features, self.weight.flatten(0, 1), self.bias.flatten())
        if self.relu:
            answers = answers.relu()
        streams = answers.unflatten(-1, self.bias.shape).movedim(-2, 1)
        return average_copies(streams, active_streams)


class StreamAverage(nn.Module):
    """Average what the streams of the same input say, where streams never mixed: no matrices."""

    def forward(self, streams: Tensor, active_streams: int) -> Tensor:
        """Average (g, s, d) -> (g, a, d)."""
        return average_copies(streams, active_streams)
