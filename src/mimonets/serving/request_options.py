"""What a request may ask for, and what fits the network: checked before anything is queued.

Also how its answer came about, in the parameters of the response.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any

import numpy as np

from mimonets._inputs import InputSpec
from mimonets._messages import short
from mimonets.serving.model_queue import InferenceRequest, ModelQueue
from mimonets.serving.networks import PADDING
from mimonets.serving.operating_points import Array
from mimonets.serving.policy import Policy

PARAMETERS = (
    *("timeout", "priority", "mode", "min_accuracy", "cascade", "deterministic", "superpose"),
)
MOST_NAMES = 100  # that are looked at for misspelt ones: a request may hold a million
LARGEST_VALUE = 1000.0  # of images whose mean and deviation are not known


class RequestError(Exception):
    """A request that cannot be answered, with its HTTP status."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


@dataclass(frozen=True)
class RequestOptions:
    """What a request asks for besides the answer."""

    timeout: float | None = None  # seconds, for the whole request
    priority: int = 0
    speed: str | None = None  # fast, normal or slow
    max_active: int | None = None  # most inputs that may share its pass
    min_accuracy: float | None = None
    cascade: bool = False
    deterministic: bool = False
    superpose: bool = False  # as fast as it allows, even when the server is idle


def read_options(parameters: Mapping[str, Any]) -> RequestOptions:
    """Read the parameters of a request; ignore those for other servers, refuse misspelt ones."""
    for name in islice(parameters, MOST_NAMES):
        if name not in PARAMETERS:
            for meant in get_close_matches(name.lower(), PARAMETERS, n=1, cutoff=0.9):
                raise RequestError(400, f"Unknown parameter {short(name)}: did you mean {meant!r}?")
    timeout = _number(parameters, "timeout", 0, 3.6e9)
    mode = parameters.get("mode")
    if mode is not None and mode not in ("fast", "normal", "slow") and not is_count(mode):
        raise RequestError(
            400, f"mode={short(mode)} must be fast, normal, slow or an integer >= 1."
        )
    priority = _number(parameters, "priority", 0, 100)
    return RequestOptions(
        timeout=timeout / 1e6 if timeout else None,
        priority=int(priority or 0),
        speed=mode if isinstance(mode, str) else None,
        max_active=mode if isinstance(mode, int) else None,
        min_accuracy=_number(parameters, "min_accuracy", 0, 1),
        cascade=_flag(parameters, "cascade"),
        deterministic=_flag(parameters, "deterministic"),
        superpose=_flag(parameters, "superpose"),
    )


def check_inputs(tensor: Array, spec: InputSpec, *, takes_short: bool) -> Array:
    """Refuse what the network cannot take; prepare raw pixels; fill up short sequences."""
    if spec.kind == "image":
        return _check_images(tensor, spec)
    if tensor.dtype.kind not in "iu":
        raise RequestError(400, f"Token ids are INT64 or INT32, not {tensor.dtype}.")
    fits = tensor.ndim == len(spec.shape) + 1 and tensor.shape[1:-1] == spec.shape[:-1]
    length, longest = tensor.shape[-1] if tensor.ndim else 0, spec.shape[-1]
    if not fits or not 1 <= length <= longest or (length < longest and not takes_short):
        raise _wrong_shape(tensor, spec, " up to" if takes_short else "")
    highest = spec.vocab_size
    if tensor.min() < 0 or (highest is not None and tensor.max() >= highest):
        raise RequestError(400, f"Token ids must lie between 0 and {(highest or 0) - 1}.")
    filled = np.full((len(tensor), *spec.shape), PADDING, dtype=np.int64)
    filled[..., :length] = tensor
    return filled


def _check_images(tensor: Array, spec: InputSpec) -> Array:
    if tensor.dtype.kind == "i":
        raise RequestError(400, "Images are FP32, or UINT8 for raw pixels.")
    if tensor.dtype == np.uint8:
        raw = spec.original if spec.original is not None else spec.shape[1:]
        if tensor.ndim != 4 or tensor.shape[1:] != (spec.shape[0], *raw):
            raise RequestError(
                400,
                f"Raw pixels must be (inputs, {spec.shape[0]}, {raw[0]}, {raw[1]}), "
                f"not {tensor.shape}.",
            )
        return np.ascontiguousarray(spec.prepare(tensor), dtype=np.float32)
    if tensor.ndim != 4 or tensor.shape[1:] != spec.shape:
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


def make_request(
    queue: ModelQueue,
    inputs: Array,
    options: RequestOptions,
    now: float,
    slo: float,
    *,
    tenant: str,
    shares: bool,
) -> InferenceRequest:
    """Make a request with a deadline from its inputs; raises RequestError if no mode fits."""
    fastest = _fastest_point(options, queue.policy)
    return InferenceRequest(
        queue=queue,
        inputs=inputs,
        count=len(inputs),
        arrival=now,
        deadline=now + (options.timeout or slo),
        tenant=tenant,
        shares=shares,
        fastest=fastest,
        slowest=fastest if options.superpose else 0,
        alone=_is_alone(options, queue.policy),
        priority=options.priority,
        cascade=options.cascade,
        size=inputs.nbytes,
    )


def _fastest_point(options: RequestOptions, policy: Policy) -> int:
    """Find the index of the fastest operating point that a request allows.

    Slow is the first point. Normal is half the streams; the middle one of several networks or
    resolutions, where every input has a pass of its own.
    """
    sizes = {point.inputs_per_pass for point in policy.points}
    max_active, fastest = options.max_active, policy.fastest
    if options.speed == "slow" or _is_alone(options, policy):
        max_active, fastest = None, 0
    elif options.speed == "normal" and len(sizes) > 1:
        max_active = max(min(sizes), max(sizes) // 2)
    elif options.speed == "normal":
        fastest = policy.fastest // 2
    for index in range(policy.fastest, -1, -1):
        point = policy.points[index]
        has_room = max_active is None or point.inputs_per_pass <= max_active
        if has_room and (point.accuracy or 0.0) >= (options.min_accuracy or 0.0):
            return min(fastest, index)
    known = ", ".join(
        f"{point.inputs_per_pass} active"
        + ("" if point.accuracy is None else f": {point.accuracy:.4f}")
        for point in policy.points
    )
    raise RequestError(
        400,
        f"No mode fits max_active={max_active} and min_accuracy={options.min_accuracy}: "
        f"the modes and their accuracies are {known}.",
    )


def _is_alone(options: RequestOptions, policy: Policy) -> bool:
    """Tell whether nobody may share its pass: it says so, or no point has so few inputs.

    The point with one input is not served where another one is as accurate and cheaper.
    """
    most = 1 if options.speed == "slow" else options.max_active
    fewest = min(point.inputs_per_pass for point in policy.points)
    return options.deterministic or (most is not None and most < fewest)


def response_parameters(request: InferenceRequest) -> dict[str, Any]:
    """Say how an answer came about; of several inputs the most crowded, doubtful and slow one."""
    answers = [answer for answer in request.answers if answer is not None]
    points = [answer.point for answer in answers]
    found: dict[str, Any] = {
        "active_streams": max([point.inputs_per_pass for point in points]),
        "group_size": max([answer.group_size for answer in answers]),
        "confidence": round(min([answer.confidence for answer in answers]), 6),
        "queue_us": int(1e6 * max([answer.queued for answer in answers])),
        "compute_us": int(1e6 * max([answer.computed for answer in answers])),
        "cascaded": any(answer.cascaded for answer in answers),
    }
    known = [point.accuracy for point in points if point.accuracy is not None]
    if known:
        found["expected_accuracy"] = round(min(known), 6)
    found["mode_name"] = max(points, key=lambda point: point.inputs_per_pass).name
    return found


def is_count(value: object) -> bool:
    """Tell whether a decoded value is an integer >= 1 of sensible size."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31


def _wrong_shape(tensor: Array, spec: InputSpec, at_most: str = "") -> RequestError:
    *sides, last = map(str, spec.shape)
    wanted = ", ".join(["inputs", *sides, f"{at_most} {last}".strip()])
    return RequestError(400, f"Inputs must be ({wanted}), not {tensor.shape}.")


def _number(parameters: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    value = parameters.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RequestError(400, f"{name}={short(value)} must be a number from {low:g} to {high:g}.")
    return float(value)


def _flag(parameters: Mapping[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(400, f"{name}={short(value)} must be true or false.")
    return value
