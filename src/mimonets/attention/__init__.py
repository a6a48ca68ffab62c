"""Attention for one stream, and for a grid of streams in superposition.

Feature maps, linear attention, FAVOR+S, and the softmax attention that they are compared with.
"""

from mimonets.attention.favor_s import favor_s
from mimonets.attention.features import (
    DPFP,
    FeatureMap,
    ReLUFeatures,
    SoftmaxFeatures,
    orthogonal_projection,
)
from mimonets.attention.linear import linear_attention
from mimonets.attention.softmax import softmax_attention
from mimonets.attention.solo import exact_solo, favor_solo

__all__ = [
    "DPFP",
    "FeatureMap",
    "ReLUFeatures",
    "SoftmaxFeatures",
    "exact_solo",
    "favor_s",
    "favor_solo",
    "linear_attention",
    "orthogonal_projection",
    "softmax_attention",
]
