"""Inputs of a request: counted, and checked against what the network takes, before they queue."""

import math
from typing import Any

import numpy as np

from mimonets._inputs import InputSpec
from mimonets.serving.errors import RequestError
from mimonets.serving.networks import PADDING
from mimonets.serving.operating_points import Array

LARGEST_VALUE = 1000.0  # of images whose mean and deviation are not known


def check_inputs(tensor: Array, spec: InputSpec, *, takes_short: bool) -> Array:
    """Refuse what the network cannot take; prepare raw pixels; fill up short sequences."""
    if spec.kind != "tokens":
        return _check_numbers(tensor, spec)
    if tensor.dtype.kind not in "iu":
        raise RequestError(400, f"Token ids are INT64 or INT32, not {tensor.dtype}.")
    fits = tensor.ndim == len(spec.shape) + 1 and tensor.shape[1:-1] == spec.shape[:-1]
    length, longest = tensor.shape[-1] if tensor.ndim else 0, spec.shape[-1]
    if not fits or not 1 <= length <= longest or (length < longest and not takes_short):
        raise _wrong_shape(tensor, spec, " up to" if takes_short else "")
    if tensor.min() < 0:
        raise RequestError(400, "Token ids must be at least 0.")
    if spec.vocab_size is not None and tensor.max() >= spec.vocab_size:
        raise RequestError(400, f"Token ids must lie between 0 and {spec.vocab_size - 1}.")
    filled = np.full((len(tensor), *spec.shape), PADDING, dtype=np.int64)
    filled[..., :length] = tensor
    return filled


def _check_numbers(tensor: Array, spec: InputSpec) -> Array:
    if tensor.dtype.kind == "i" or (tensor.dtype == np.uint8 and spec.kind == "array"):
        wanted = "Images are FP32, or UINT8 for raw pixels."
        raise RequestError(400, wanted if spec.kind == "image" else "Inputs are FP32.")
    if tensor.dtype == np.uint8:
        raw = spec.original if spec.original is not None else spec.shape[1:]
        if tensor.ndim != 4 or tensor.shape[1:] != (spec.shape[0], *raw):
            raise RequestError(
                400,
                f"Raw pixels must be (inputs, {spec.shape[0]}, {raw[0]}, {raw[1]}), "
                f"not {tensor.shape}.",
            )
        return np.ascontiguousarray(spec.prepare(tensor), dtype=np.float32)
    if tensor.shape[1:] != spec.shape:
        raise _wrong_shape(tensor, spec)
    largest = largest_value(spec)
    if not (tensor.max() <= largest and tensor.min() >= -largest):  # nan is neither
        raise RequestError(400, f"All values must be finite and within +-{largest:.4g}.")
    return np.ascontiguousarray(tensor, dtype=np.float32)


def largest_value(spec: InputSpec) -> float:
    """Give the largest value that an image may have: twice what pixels of 0..255 become.

    A neighbour with huge values changes the answers of its whole group.

    >>> largest_value(InputSpec(kind="image", shape=(1, 2, 2), mean=(155.0,), deviation=(50.0,)))
    6.2
    """
    if spec.mean is None or spec.deviation is None:
        return LARGEST_VALUE
    pairs = zip(spec.mean, spec.deviation, strict=True)
    return 2 * max(max(mean, 255 - mean) / deviation for mean, deviation in pairs)


def numbers_of(spec: InputSpec) -> int:
    """Count the numbers of one input, also of an image before it is cropped."""
    given = 1 if spec.original is None else spec.shape[0] * math.prod(spec.original)
    return max(given, math.prod(spec.shape))


def flatten(data: Any, shape: list[int]) -> list[float]:
    """Give the numbers of a tensor that came flat or nested; counted before they are touched."""
    count = math.prod(shape)
    wrong = RequestError(
        400, f"data must be {count} numbers for the shape {shape!r}, flat or nested like it."
    )
    if not isinstance(data, list):
        raise wrong
    for _ in shape[1:]:
        if not 0 < len(data) <= count or not isinstance(data[0], list):
            break
        if not all(isinstance(part, list) and len(part) == len(data[0]) for part in data):
            raise wrong
        if len(data) * len(data[0]) > count:
            raise wrong
        data = [one for part in data for one in part]
    if len(data) != count or not set(map(type, data)) <= {int, float}:
        raise wrong
    return data


def _wrong_shape(tensor: Array, spec: InputSpec, at_most: str = "") -> RequestError:
    *sides, last = map(str, spec.shape)
    wanted = ", ".join(["inputs", *sides, f"{at_most} {last}".strip()])
    return RequestError(400, f"Inputs must be ({wanted}), not {tensor.shape}.")
