"""``POST /v1/classify``: image files in, labels and probabilities out.

Images are prepared as in training; their size is checked before anything is decoded.
"""

import asyncio
import base64
import binascii
import io
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from starlette.datastructures import UploadFile

from mimonets._extras import install_line
from mimonets._inputs import KINDS, InputSpec
from mimonets.serving.app import authorise, json_response, read_request_body
from mimonets.serving.infer import client_leaves
from mimonets.serving.model_queue import InferenceRequest
from mimonets.serving.operating_points import Array
from mimonets.serving.protocol import read_json, response_parameters, softmax
from mimonets.serving.request_options import RequestError, read_options
from mimonets.serving.server import CountedRequest, Server

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


FORMATS = ("PNG", "JPEG")
MAX_PIXELS = 16_000_000
# Commas of a JSON body: of an image, whose data URL has one, and of everything else together.
PER_IMAGE, BESIDE = 2, 100


def add_classify(app: FastAPI, server: Server) -> None:
    """Add the route."""

    @app.post("/v1/classify", openapi_extra=BODY)
    async def classify(request: Request) -> Response:
        begun = server.clock()
        with CountedRequest(server, next(iter(server.loaders))) as counted:
            return await answer_files(request, begun, counted)

    async def answer_files(request: Request, begun: float, counted: CountedRequest) -> Response:
        tenant = authorise(request, server)
        files, settings = await _read_request(request, server)
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
        _check_count(files, server)
        # One thread for each request: large files of one do not keep those of others waiting.
        decoded = await asyncio.get_running_loop().run_in_executor(
            server.pool, read_images, files, spec, server.settings.max_pixels
        )
        leaves = partial(client_leaves, request.receive)
        answered = await server.answer(found, decoded, options, tenant, leaves, begun)
        return json_response(_labels(answered, spec))


def _check_count(images: Sequence[Any], server: Server) -> None:
    most = server.settings.max_inputs
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


async def _read_request(request: Request, server: Server) -> tuple[list[bytes], dict[str, Any]]:
    """Read files and settings from a form, a JSON object, or a body that is one image."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return await _read_form(request, server)
    body = await read_request_body(request, server)
    if kind in ("image/png", "image/jpeg", "application/octet-stream"):
        return [body], _words(dict(request.query_params))
    if kind not in ("application/json", ""):
        raise RequestError(415, "Send image/png, image/jpeg, multipart/form-data or JSON.")
    content = read_json(body, most=BESIDE + PER_IMAGE * server.settings.max_inputs)
    images = content.pop("images", None)
    if not isinstance(images, list):
        raise RequestError(400, 'images must be a list of data URLs, "data:image/png;base64,...".')
    _check_count(images, server)
    return [read_data_url(text) for text in images], content


async def _read_form(request: Request, server: Server) -> tuple[list[bytes], dict[str, Any]]:
    body = await read_request_body(request, server)  # counted; the form is then read from memory

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    files: list[bytes] = []
    settings: dict[str, str] = {}
    form_request = Request(request.scope, receive)
    try:
        async with form_request.form(max_files=server.settings.max_inputs) as form:
            for name, value in form.multi_items():
                if isinstance(value, UploadFile):
                    files.append(await value.read())
                else:
                    settings[name] = value
    except Exception as error:
        raise RequestError(400, f"The form cannot be read: {error}") from None
    return files, _words(settings)


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


def read_images(files: Sequence[bytes], spec: InputSpec, max_pixels: int = MAX_PIXELS) -> Array:
    """Decode PNG or JPEG files into standardised inputs (b, c, h, w).

    ``max_pixels`` limits all files together, by the sizes that they state, before any is decoded.
    """
    opened = [_open(file, max_pixels) for file in files]
    pixels = sum(width * height for width, height in (file.size for file in opened))
    if pixels > max_pixels:
        raise _too_many(str(pixels), max_pixels)
    return np.stack([_decode(file, spec) for file in opened])


def _open(data: bytes, max_pixels: int) -> Any:
    """Read the head of a file, which says its size."""
    try:
        from PIL import Image
    except ImportError:
        raise RequestError(
            503, f"Image files need Pillow on the server: {install_line('serve')}."
        ) from None

    try:
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many("Far more", max_pixels) from None
    except Exception:  # whatever a damaged file makes the decoder raise
        raise RequestError(415, "This is no PNG or JPEG file.") from None


def _decode(file: Any, spec: InputSpec) -> Array:
    from PIL import Image

    channels, wanted = spec.shape[0], spec.raw_size
    try:
        if file.mode.startswith("I"):  # 16 bits per pixel: the high byte, as in training
            file = Image.fromarray((np.asarray(file) >> 8).astype(np.uint8))
        picture = file.convert("L" if channels == 1 else "RGB")
        if wanted is not None and picture.size != wanted[::-1]:
            picture = picture.resize(wanted[::-1], Image.Resampling.BOX)
        pixels = np.asarray(picture, dtype=np.uint8)
    except Exception:
        raise RequestError(415, "The image file is damaged.") from None
    pixels = pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
    try:
        return np.ascontiguousarray(spec.prepare(pixels), dtype=np.float32)
    except ValueError as error:  # smaller than the crop
        raise RequestError(400, str(error)) from None


def _too_many(pixels: str, most: int) -> RequestError:
    return RequestError(
        413, f"{pixels} pixels in one request; at most {most} are decoded: send fewer or smaller."
    )


def read_data_url(text: object) -> bytes:
    """Decode ``data:image/png;base64,...``."""
    if not isinstance(text, str) or not text.startswith("data:image/") or "," not in text:
        raise RequestError(400, 'images must be data URLs: "data:image/png;base64,...".')
    kind, _, data = text.partition(",")
    if not kind.endswith(";base64"):
        raise RequestError(400, "data URLs must be base64.")
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        raise RequestError(400, "The data URL is not base64.") from None
