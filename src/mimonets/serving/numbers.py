"""Numbers that clients send: counted before anything is done with them."""

import math
from typing import Any

from mimonets._inputs import InputSpec
from mimonets.serving.request_options import RequestError


def read_length(text: str) -> int:
    """Read a number of bytes; -1 for anything else, such as other digits than 0 to 9."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1


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
