"""The algebra of superposition: tensors in, tensors out, no modules.

Keys, binding, bundling and the bookkeeping that puts a batch into streams and takes it out again.
"""

from mimonets.vsa.binding import (
    approximate_inverse,
    circulant,
    circular_convolution,
    circular_correlation,
    exact_inverse,
    hadamard_product,
    matrix_bind,
    matrix_unbind,
)
from mimonets.vsa.keys import bipolar_keys, gaussian_keys, matrix_keys, slot_keys, unitary_keys
from mimonets.vsa.memory import bundle, cleanup, similarity
from mimonets.vsa.superposition import (
    average_copies,
    check_active_streams,
    fold_streams,
    squarest_grid,
    stream_assignment,
    unfold_streams,
    whole_and_short_groups,
)

__all__ = [
    "approximate_inverse",
    "average_copies",
    "bipolar_keys",
    "bundle",
    "check_active_streams",
    "circulant",
    "circular_convolution",
    "circular_correlation",
    "cleanup",
    "exact_inverse",
    "fold_streams",
    "gaussian_keys",
    "hadamard_product",
    "matrix_bind",
    "matrix_keys",
    "matrix_unbind",
    "similarity",
    "slot_keys",
    "squarest_grid",
    "stream_assignment",
    "unfold_streams",
    "unitary_keys",
    "whole_and_short_groups",
]
