"""``POST /v1/classify``: image files in, labels and probabilities out.

Bodies are taken apart and images are decoded on threads of their own (`decoders`), not on the loop.
"""

import base64
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartParser

from mimonets._inputs import KINDS, InputSpec
from mimonets.serving.app import json_response
from mimonets.serving.bodies import Body
from mimonets.serving.errors import RequestError
from mimonets.serving.images import Check, read_images
from mimonets.serving.infer import client_leaves, find_tenant, headers_by_name
from mimonets.serving.model_queue import InferenceRequest
from mimonets.serving.protocol import read_json, response_parameters, softmax
from mimonets.serving.request_options import read_options
from mimonets.serving.server import CountedRequest, Server, ServerSettings

BODY = {
    "requestBody": {
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {
                        "images": {"type": "array", "items": {"type": "string"}},
                        "model": {"type": "string"},
                        "mode": {"type": "string"},
                    },
                }
            },
            "image/png": {"schema": {"type": "string", "format": "binary"}},
            "image/jpeg": {"schema": {"type": "string", "format": "binary"}},
        }
    }
}


FORM_STEP = 64 * 2**10  # bytes of a form that are read at once
# Commas of a JSON body: of an image, whose data URL has one, and of everything else together.
PER_IMAGE, BESIDE = 2, 100


def add_classify(app: FastAPI, server: Server) -> None:
    """Add the route."""

    @app.post("/v1/classify", openapi_extra=BODY)
    async def classify(request: Request) -> Response:
        begun = server.clock()
        given = headers_by_name(request.headers.raw)
        with CountedRequest(server, next(iter(server.loaders)), given) as counted:
            return await answer_files(request, given, begun, counted)

    async def answer_files(
        request: Request, given: dict[bytes, bytes], begun: float, counted: CountedRequest
    ) -> Response:
        tenant = find_tenant(server, given)
        counted.hold(tenant)
        leaves = partial(client_leaves, request.receive)
        decode = partial(server.decoders.run, tenant.name, client_leaves=leaves)
        kind = request.headers.get("content-type", "")
        most = min(server.settings.max_image_body, server.settings.max_body)
        with Body(server.bodies, tenant.name) as body:
            content = await body.read(request.receive, given, most)
            files, settings = await decode(
                begun + server.settings.body_timeout,
                work=partial(_read_request, content, kind, request, server.settings),
            )
            del content
            name = settings.pop("model", None) or counted.name
            if not isinstance(name, str):
                raise RequestError(400, "model must be a name.")
            counted.name = name
            options = read_options(settings)
            found = server.find(name)
            spec = found.network.input_spec
            if spec.kind != "image":
                takes = KINDS[spec.kind]
                raise RequestError(400, f"{name} takes {takes}, not images: use /v2/models/{name}.")
            if spec.answers == "values":
                raise RequestError(
                    400, f"{name} answers with values, not classes: use /v2/models/{name}/infer."
                )
            _check_count(files, server.settings)
            decoded = await decode(
                begun + (options.timeout or server.settings.slo),
                work=partial(read_images, files, spec, server.settings.max_pixels),
            )
            del files
        answered = await server.answer(found, decoded, options, tenant, leaves, begun)
        return json_response(_labels(answered, spec))


def _check_count(images: Sequence[Any], settings: ServerSettings) -> None:
    most = settings.max_inputs
    if not 1 <= len(images) <= most:
        raise RequestError(400, f"{len(images)} images came; 1 to {most} are taken.")


def _labels(request: InferenceRequest, spec: InputSpec) -> dict[str, Any]:
    answers = []
    for answer in request.answers:
        assert answer is not None
        chances = softmax(answer.output.reshape(-1))
        best = int(chances.argmax())
        answers.append(
            {
                "label": spec.label(best),
                "class": best,
                "probability": round(float(chances[best]), 6),
                "probabilities": [round(float(chance), 6) for chance in chances],
                "active_streams": answer.point.inputs_per_pass,
                "group_size": answer.group_size,
            }
        )
    return {
        "model": request.queue.name,
        "version": request.queue.version,
        "answers": answers,
        "parameters": response_parameters(request),
    }


def _read_request(
    body: bytes, header: str, request: Request, settings: ServerSettings, check: Check
) -> tuple[list[bytes], dict[str, Any]]:
    """Read files and settings from a form, a JSON object, or a body that is one image."""
    kind = header.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return _read_form(body, request, settings, check)
    if kind in ("image/png", "image/jpeg", "application/octet-stream"):
        return [body], _words(dict(request.query_params))
    if kind not in ("application/json", ""):
        raise RequestError(415, "Send image/png, image/jpeg, multipart/form-data or JSON.")
    content = read_json(body, most=BESIDE + PER_IMAGE * settings.max_inputs)
    images = content.pop("images", None)
    if not isinstance(images, list):
        raise RequestError(400, 'images must be a list of data URLs, "data:image/png;base64,...".')
    _check_count(images, settings)
    files = []
    for text in images:
        check()
        files.append(read_data_url(text))
    return files, content


class _FormParser(MultiPartParser):
    spool_max_size = 2**40  # the body is in memory, and counted: nothing goes to disk


def _read_form(
    body: bytes, request: Request, settings: ServerSettings, check: Check
) -> tuple[list[bytes], dict[str, Any]]:
    async def chunks() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(body), FORM_STEP):
            check()
            yield body[start : start + FORM_STEP]

    parser = _FormParser(request.headers, chunks(), max_files=settings.max_inputs)
    try:
        parser.parse().send(None)  # it waits for nothing, so it runs to its end
    except StopIteration as end:
        form = end.value
    except RequestError:
        raise
    except Exception as error:
        raise RequestError(400, f"The form cannot be read: {error}") from None
    files: list[bytes] = []
    found: dict[str, str] = {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            files.append(value.file.read())
            value.file.close()
        else:
            found[name] = value
    return files, _words(found)


def _words(found: dict[str, str]) -> dict[str, Any]:
    """Read parameters that came as text."""
    return {name: text if name == "model" else _word(text) for name, text in found.items()}


def _word(text: str) -> bool | float | str:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return text


def read_data_url(text: object) -> bytes:
    """Decode ``data:image/png;base64,...``."""
    if not isinstance(text, str) or not text.startswith("data:image/") or "," not in text:
        raise RequestError(400, 'images must be data URLs: "data:image/png;base64,...".')
    kind, _, data = text.partition(",")
    if not kind.endswith(";base64"):
        raise RequestError(400, "data URLs must be base64.")
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:  # also for letters beyond ASCII
        raise RequestError(400, "The data URL is not base64.") from None
