"""What ``/openapi.json`` says beyond what the routes say themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from recurra.core.version import __version__
from recurra.deployment.serving.schema import ClassifyRequest, ClassifyResponse, ErrorResponse, Readiness
from recurra.deployment.serving.settings import ServerLimits

_REASONS = {
    400: "The body is not JSON in UTF-8.",
    401: "The API key is missing or wrong.",
    404: "There is no such model.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    415: "The body is not declared to be JSON.",
    422: "The body is not what is asked for, or beyond a limit.",
    429: "Too many texts are waiting, or this client asks more often than it may; Retry-After says when to try again.",
    503: "The texts were not computed in time, or the server is being stopped.",
}


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorResponse, "description": _REASONS[status]} for status in statuses}


CLASSIFY: dict[str, Any] = {
    "response_model": ClassifyResponse,
    "responses": _errors(400, 401, 404, 408, 413, 415, 422, 429, 503),
    # The body is read by us, in parts, so that one that is too large never lies in memory.
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ClassifyRequest"}}},
        }
    },
}
GUARDED: dict[str, Any] = {"responses": _errors(401, 404, 429)}
METRICS: dict[str, Any] = {
    "responses": {200: {"content": {"text/plain": {}}, "description": "Metrics."}, **_errors(401, 429)}
}
READY: dict[str, Any] = {"responses": {503: {"model": Readiness}}}
PAGE: dict[str, Any] = {"responses": {200: {"content": {"text/html": {}}, "description": "The page."}, **_errors(429)}}


def describe(application: FastAPI, limits: ServerLimits, names: list[str], *, with_key: bool) -> None:
    """Gives an application its OpenAPI document, with the limits and models of this server.

    Args:
        application: With all its routes.
        limits: Bounds of a request.
        names: Of the models.
        with_key: Whether a key is asked for.
    """
    document = get_openapi(
        title="Recurra",
        version=__version__,
        description="Text classification by Transformers that reuse their layers.",
        routes=application.routes,
    )
    schemas = document["components"]["schemas"]
    request = ClassifyRequest.model_json_schema(ref_template="#/components/schemas/{model}")
    text, texts = request["properties"]["text"]["anyOf"]
    text["maxLength"] = texts["items"]["maxLength"] = limits.max_characters
    texts["maxItems"] = limits.max_texts
    name, several, _ = request["properties"]["model"]["anyOf"]
    for one in (name, several["items"]):
        one["enum"] = names
    several["uniqueItems"] = True
    for parameter in document["paths"]["/v1/models/{name}"]["get"]["parameters"]:
        parameter["schema"]["enum"] = names
    for example in request["examples"]:
        if "model" in example:
            example["model"] = names[0] if isinstance(example["model"], str) else names[:2]
    schemas["ClassifyRequest"] = request
    # Ours are all errors: FastAPI's own are never sent.
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for path in document["paths"].values():
        for operation in path.values():
            unprocessable = operation["responses"].get("422", {})
            if "HTTPValidationError" in str(unprocessable):
                del operation["responses"]["422"]
    if with_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for path, operations in document["paths"].items():
            if path.startswith("/v1") or path == "/metrics":
                for operation in operations.values():
                    operation["security"] = [{"key": []}]
    application.openapi = lambda: document  # type: ignore[method-assign]
