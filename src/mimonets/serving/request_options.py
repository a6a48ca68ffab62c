"""What a request may ask for besides the answer: how fast, how accurate, in what time."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any

from mimonets._messages import short
from mimonets.serving.errors import RequestError
from mimonets.serving.model_queue import InferenceRequest, ModelQueue
from mimonets.serving.operating_points import Array
from mimonets.serving.policy import Policy
from mimonets.serving.tenants import Tenant

PARAMETERS = (
    "timeout",
    "priority",
    "mode",
    "min_accuracy",
    "cascade",
    "deterministic",
    "superpose",
)
MOST_NAMES = 100  # that are looked at for misspelt ones: a request may hold a million


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


def make_request(
    queue: ModelQueue,
    inputs: Array,
    options: RequestOptions,
    tenant: Tenant,
    *,
    arrival: float,
    slo: float,
) -> InferenceRequest:
    """Make a request with a deadline from its inputs; raises RequestError if no mode fits."""
    fastest = _fastest_point(options, queue.policy)
    return InferenceRequest(
        queue=queue,
        inputs=inputs,
        count=len(inputs),
        arrival=arrival,
        deadline=arrival + (options.timeout or slo),
        tenant=tenant.name,
        shares=tenant.shares,
        fastest=fastest,
        slowest=fastest if options.superpose else 0,
        alone=_is_alone(options, queue.policy),
        priority=options.priority,
        cascade=options.cascade,
        size=inputs.nbytes,
    )


def _fastest_point(options: RequestOptions, policy: Policy) -> int:
    """Find the index of the fastest operating point that a request allows.

    Slow is the first point. Normal is half the streams; the middle one of several networks, where
    every input has a pass of its own.
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


def is_count(value: object) -> bool:
    """Tell whether a decoded value is an integer >= 1 of sensible size."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31


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
