"""Open Inference Protocol v2: bytes to inputs, answers to bytes. JSON and binary tensors.

https://github.com/kserve/open-inference-protocol, and the binary tensor extension as Triton's
clients speak it: a JSON header, then raw little-endian tensors in row-major order.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from mimonets._inputs import InputSpec
from mimonets._messages import short
from mimonets.serving.errors import RequestError
from mimonets.serving.input_checks import check_inputs, flatten, numbers_of
from mimonets.serving.model_queue import InferenceRequest, ModelQueue
from mimonets.serving.networks import VALUES, Network
from mimonets.serving.operating_points import Array
from mimonets.serving.request_options import RequestOptions, is_count, read_options

PER_NUMBER, BESIDE = 40, 2**16  # bytes of JSON: of one number, and of everything else together
EXTENSIONS = ("binary_tensor_data", "classification", "model_repository")
LONGEST_JSON = 8 * 2**20  # bytes: all threads wait while JSON is decoded
INPUT, OUTPUTS = "input", ("logits", "probabilities", "label")
DATATYPES: dict[str, np.dtype[Any]] = {
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "FP16": np.dtype("<f2"),
    "UINT8": np.dtype("u1"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
}


@dataclass(frozen=True)
class RequestHeader:
    """What the JSON of a request says."""

    dtype: str
    shape: list[int]
    size: int | None  # bytes of the tensor that follow; None: it is in the JSON
    data: Any  # the tensor, if it is in the JSON
    options: RequestOptions
    id: str | None
    outputs: tuple[tuple[str, bool, int], ...]  # name, binary, classes


def decode_request(
    body: bytes,
    header_length: str | None,
    spec: InputSpec,
    *,
    takes_short: bool,
    max_inputs: int,
) -> tuple[RequestHeader, Array]:
    """Decode an inference request into its header and its inputs; raises RequestError."""
    cut = len(body)
    if header_length is not None:
        cut = _read_length(header_length)
        if not 0 <= cut <= len(body):
            raise RequestError(
                400,
                f"Inference-Header-Content-Length is {short(header_length)}: "
                f"it must be an integer from 0 to {len(body)}, the bytes of the body.",
            )
    longest = min(largest_body(spec, max_inputs), LONGEST_JSON)
    if cut > longest:
        raise RequestError(
            413,
            f"{cut} bytes of JSON; at most {longest} are taken for this network: send "
            f"fewer inputs, or binary tensors.",
        )
    lists = max_inputs * sum(math.prod(spec.shape[:side]) for side in range(len(spec.shape)))
    if body.count(b"[", 0, cut) + body.count(b"{", 0, cut) > BESIDE + lists:  # 25 times its bytes
        raise RequestError(413, f"The request has more than {BESIDE + lists} lists and objects.")
    header = read_header(read_json(body[:cut]), spec, max_inputs)
    return header, read_inputs(header, body[cut:], spec, takes_short=takes_short)


def read_inputs(header: RequestHeader, raw: bytes, spec: InputSpec, *, takes_short: bool) -> Array:
    """Read the tensor of a request, from its JSON or the bytes after it, and check it."""
    return check_inputs(_read_tensor(header, raw), spec, takes_short=takes_short)


def largest_body(spec: InputSpec, max_inputs: int, per_number: int = PER_NUMBER) -> int:
    """Give the most bytes that a request to a network needs, as JSON or with a binary tensor."""
    return BESIDE + per_number * max_inputs * numbers_of(spec)


def read_json(body: bytes, most: int | None = None) -> dict[str, Any]:
    """Decode a JSON object; 413 if it has more than ``most`` commas, before it is decoded."""
    if most is not None and body.count(b",") > most:
        raise RequestError(413, f"The request has more than {most} values: send fewer.")
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, f"The request is not JSON: {error}.") from None
    if not isinstance(content, dict):
        raise RequestError(400, "The request must be a JSON object.")
    return content


def encode_response(
    request: InferenceRequest, asked: RequestHeader, spec: InputSpec
) -> tuple[bytes, int | None]:
    """Encode the answers; returns the body and, if it has binary tensors, the header's length."""
    tensors, raw = [], b""
    found = zip(asked.outputs, make_outputs(request, asked, spec), strict=True)
    for (_, binary, _), (described, data) in found:
        if binary:
            described["parameters"] = {"binary_data_size": len(data)}
            described.pop("data", None)
            raw += data
        tensors.append(described)
    header: dict[str, Any] = {
        "model_name": request.queue.name,
        "model_version": request.queue.version,
        "outputs": tensors,
    }
    if asked.id is not None:
        header["id"] = asked.id
    header["parameters"] = response_parameters(request)
    if spec.answers == "values":
        del header["parameters"]["confidence"]  # which classes have
    text = orjson.dumps(header, option=orjson.OPT_SERIALIZE_NUMPY)
    is_binary = any(binary for _, binary, _ in asked.outputs)
    return (text + raw, len(text)) if is_binary else (text, None)


def make_outputs(
    request: InferenceRequest, asked: RequestHeader, spec: InputSpec
) -> list[tuple[dict[str, Any], bytes]]:
    """Make the tensors that were asked for: each as JSON, and its content as bytes."""
    found = [answer.output for answer in request.answers if answer is not None]
    logits = np.asarray(found[0])[np.newaxis] if len(found) == 1 else np.stack(found)
    if not logits.dtype.names:
        logits = logits.astype(np.float32, copy=False)
    return [_output(wanted, logits, classes, spec) for wanted, _, classes in asked.outputs]


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


def softmax(logits: Array) -> Array:
    """Turn logits (b, classes) into probabilities."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def describe(queue: ModelQueue, network: Network, slo: float) -> dict[str, Any]:
    """Give the metadata of a model."""
    spec = network.input_spec
    sizes: list[int] = [-1, *spec.shape]
    if network.takes_short:
        sizes[-1] = -1
    datatype = "INT64" if spec.kind == "tokens" else "FP32"
    modes = [
        {
            "active_streams": point.inputs_per_pass,
            "name": point.name,
            "accuracy": point.accuracy,
            "pass_ms": round(1000 * point.seconds(point.inputs_per_pass), 3),
            "independent": point.independent,
        }
        for point in queue.policy.points
    ]
    labels = {} if spec.labels is None else {"labels": list(spec.labels)}
    return {
        "name": queue.name,
        "versions": [queue.version],
        "platform": "mimonets",
        "inputs": [{"name": INPUT, "datatype": datatype, "shape": sizes}],
        "outputs": [
            {
                "name": name,
                "datatype": "INT64" if name == "label" else "FP32",
                "shape": [-1, *network.answer_shapes.get(name, () if name == "label" else (-1,))],
            }
            for name in outputs_of(spec)
        ],
        "parameters": {"modes": modes, "slo_ms": 1000 * slo, **labels},
    }


def outputs_of(spec: InputSpec) -> tuple[str, ...]:
    """Name the outputs that can be asked for: of values there is no label and no probability."""
    if spec.answers != "values":
        return OUTPUTS
    return spec.outputs or (VALUES,)


def _read_length(text: str) -> int:
    """Read a number of bytes; -1 for anything else, such as other digits than 0 to 9."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1


def read_header(header: dict[str, Any], spec: InputSpec, max_inputs: int) -> RequestHeader:
    """Read what the JSON of a request says; raises RequestError."""
    inputs = header.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise RequestError(400, f'One tensor is wanted: "inputs": [{{"name": "{INPUT}", ...}}].')
    (found,) = inputs
    shape, kind = found.get("shape"), found.get("datatype")
    if found.get("name") != INPUT:
        raise RequestError(400, f"The input is named {INPUT!r}, not {short(found.get('name'))}.")
    if not isinstance(kind, str) or kind not in DATATYPES:
        raise RequestError(400, f"datatype {short(kind)} is not among {', '.join(DATATYPES)}.")
    sides = len(spec.shape) + 1
    if not isinstance(shape, list) or len(shape) != sides or not all(map(is_count, shape)):
        raise RequestError(
            400,
            f"shape={short(shape)} must be {sides} integers >= 1: "
            f"(inputs, {', '.join(map(str, spec.shape))}).",
        )
    if shape[0] > max_inputs:
        raise RequestError(
            413, f"{shape[0]} inputs in one request; at most {max_inputs} are taken."
        )
    count = math.prod(shape)
    if count > shape[0] * numbers_of(spec):
        raise RequestError(
            400, f"Inputs must be (inputs, {', '.join(map(str, spec.shape))}), not {shape!r}."
        )
    size = _mapping(found, "parameters").get("binary_data_size")
    if size is not None and (not is_count(size) or size != count * DATATYPES[kind].itemsize):
        raise RequestError(
            400,
            f"binary_data_size={short(size)}: {count} x {kind} are "
            f"{count * DATATYPES[kind].itemsize} bytes.",
        )
    identity = header.get("id")
    if identity is not None and not isinstance(identity, str):
        raise RequestError(400, "id must be text.")
    parameters = _mapping(header, "parameters")
    return RequestHeader(
        dtype=kind,
        shape=shape,
        size=size,
        data=found.get("data"),
        options=read_options(parameters),
        id=identity,
        outputs=_read_outputs(header, spec, binary=parameters.get("binary_data_output") is True),
    )


def _mapping(found: dict[str, Any], name: str) -> dict[str, Any]:
    """Find an object in an object; empty if it is not there."""
    value = found.get(name) or {}
    if not isinstance(value, dict):
        raise RequestError(400, f"{name} must be an object.")
    return value


def _read_tensor(header: RequestHeader, raw: bytes) -> Array:
    dtype, shape = DATATYPES[header.dtype], header.shape
    if header.size is not None:
        if header.size != len(raw):
            raise RequestError(400, f"binary_data_size={header.size}, and {len(raw)} bytes came.")
        return np.frombuffer(raw, dtype=dtype).reshape(shape)
    if raw:
        raise RequestError(400, "Bytes follow the header, but no binary_data_size announces them.")
    values = np.array(flatten(header.data, shape))
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if values.dtype.kind == "f" or values.min() < limits.min or values.max() > limits.max:
            raise RequestError(400, f"data does not fit {header.dtype}.")
    with np.errstate(over="ignore"):  # too large for FP16: infinite, and refused as such
        return values.astype(dtype).reshape(shape)


def _read_outputs(
    header: dict[str, Any], spec: InputSpec, *, binary: bool
) -> tuple[tuple[str, bool, int], ...]:
    found, names = header.get("outputs"), outputs_of(spec)
    is_values = spec.answers == "values"
    if not found:
        return tuple((name, binary, 0) for name in (names if is_values else names[:1]))
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise RequestError(400, "outputs must be a list of objects with a name.")
    wanted: list[tuple[str, bool, int]] = []
    for one in found:
        name = one.get("name")
        if name not in names:
            raise RequestError(400, f"Outputs are {', '.join(names)}, not {short(name)}.")
        if any(name == known for known, _, _ in wanted):
            raise RequestError(400, f"outputs name {name} twice: ask for each once.")
        parameters = _mapping(one, "parameters")
        classes = parameters.get("classification", 0)
        if classes and is_values:
            raise RequestError(
                400, "classification: this network answers with values, not classes."
            )
        if classes and not is_count(classes):
            raise RequestError(400, f"classification={short(classes)} must be an integer >= 1.")
        wanted.append((name, parameters.get("binary_data", binary) is True, classes))
    return tuple(wanted)


def _output(
    wanted: str, logits: Array, classes: int, spec: InputSpec
) -> tuple[dict[str, Any], bytes]:
    if spec.answers == "values":
        values: Array = logits[wanted] if logits.dtype.names else logits
        values = np.ascontiguousarray(values)
        described = {"name": wanted, "datatype": "FP32", "shape": list(values.shape)}
        return {**described, "data": values.ravel()}, values.tobytes()
    flat = logits.reshape(len(logits), -1)
    if classes:
        scores = flat if wanted == "logits" else softmax(flat)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :classes]
        words = [
            f"{row[c]:f}:{c}" + (f":{spec.label(int(c))}" if spec.labels else "")
            for row, order in zip(scores, best, strict=True)
            for c in order
        ]
        raw = b"".join(len(word).to_bytes(4, "little") + word for word in map(str.encode, words))
        shape = list(best.shape)
        return {"name": wanted, "datatype": "BYTES", "shape": shape, "data": words}, raw
    if wanted == "label":
        values = flat.argmax(axis=1).astype(np.int64)
    else:
        values = logits if wanted == "logits" else softmax(flat).astype(np.float32)
    kind = "INT64" if wanted == "label" else "FP32"
    described = {"name": wanted, "datatype": kind, "shape": list(values.shape)}
    return {**described, "data": values.ravel()}, np.ascontiguousarray(values).tobytes()
