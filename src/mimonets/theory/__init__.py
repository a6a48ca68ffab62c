"""The paper's theorems as numbers: pure functions, each checked by simulation.

Plain numbers in, a plain number out; the formula, its place in the paper and what it assumes stand
in each docstring. A bound is returned as the formula gives it: above 1 it says nothing. What is
marked "not in the paper" is ours.
"""

from mimonets._renamed import renamed
from mimonets.theory.cleanup import cleanup_noise_bound, cleanup_noise_typical, wrong_item_bound
from mimonets.theory.dimensionality import (
    any_pair_bound,
    hadamard_norm_mean,
    hadamard_norm_tail,
    interference_bound,
    interference_probability,
    streams_apart,
    width_apart,
)
from mimonets.theory.interference import (
    bernstein,
    chebyshev,
    crosstalk,
    crosstalk_peak,
    hoeffding_per_pair,
    markov_over_columns,
    markov_over_rows,
    typical_crosstalk,
    typical_peak,
)
from mimonets.theory.kernel import (
    relu_kernel,
    relu_kernel_approximation,
    softmax_kernel,
    superposed_relu_kernel,
)
from mimonets.theory.planner import Line, WidthPlan, plan
from mimonets.theory.tails import bernstein_bound, hoeffding_bound

__all__ = [
    "Line",
    "WidthPlan",
    "any_pair_bound",
    "bernstein",
    "bernstein_bound",
    "chebyshev",
    "cleanup_noise_bound",
    "cleanup_noise_typical",
    "crosstalk",
    "crosstalk_peak",
    "hadamard_norm_mean",
    "hadamard_norm_tail",
    "hoeffding_bound",
    "hoeffding_per_pair",
    "interference_bound",
    "interference_probability",
    "markov_over_columns",
    "markov_over_rows",
    "plan",
    "relu_kernel",
    "relu_kernel_approximation",
    "softmax_kernel",
    "streams_apart",
    "superposed_relu_kernel",
    "typical_crosstalk",
    "typical_peak",
    "width_apart",
    "wrong_item_bound",
]

__getattr__ = renamed(__name__)
