"""Requests made from the server's own OpenAPI document, those that fit it and those that do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from recurra.deployment.export.build import export_run
from recurra.deployment.export.manifest import ExportOptions
from recurra.deployment.serving.limits import ServerLimits
from recurra.deployment.serving.models import open_models
from served import Running, running

KEY = "0123456789abcdef-schema"
# Small, so that what is beyond them is generated too.
LIMITS = ServerLimits(max_texts=3, max_characters=40, max_body_bytes=4096)
POSITIVE, NEGATIVE = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
# Address, whether what is asked fits the document, and what the answers' statuses must hold. What has neither body nor
# parameter cannot be asked for wrongly.
GENERATED = {
    ("POST", "/v1/classify", POSITIVE): {200},
    ("POST", "/v1/classify", NEGATIVE): {400, 422},
    ("GET", "/v1/models/{name}", POSITIVE): {200},
    ("GET", "/v1/models/{name}", NEGATIVE): {404},
    ("GET", "/v1/models", POSITIVE): {200},
    ("GET", "/v1/models", NEGATIVE): {401},
    ("GET", "/health/ready", POSITIVE): {200},
    ("GET", "/health/live", POSITIVE): {200},
    ("GET", "/metrics", POSITIVE): {200},
    ("GET", "/", POSITIVE): {200},
}


@pytest.fixture(scope="module")
def server(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("served")
    for precision in ("fp32", "int8"):
        export_run(runs["exits"], root / precision, ExportOptions("onnx", precision, agreement=0.7))
    models = open_models({name: root / name for name in ("fp32", "int8")}, threads=1)
    assert all(model.classifier.calibrated_rule is not None for model in models)
    with running(models, LIMITS, key=KEY) as found:
        yield found


@pytest.fixture(scope="module")
def schema(server: Running) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def answered(case: Any, **headers: str) -> Any:
    """The answer, which is what the document says: status, kind and shape; never a failure."""
    response = case.call(headers=headers)
    case.validate_response(response, headers=headers)
    assert response.status_code < 500
    assert "Traceback" not in response.text and 'File "' not in response.text
    return response


def test_the_document_lists_what_is_asked(schema: Any) -> None:
    listed = {(one.ok().method.upper(), one.ok().path) for one in schema.get_all_operations()}
    assert listed == {(method, path) for method, path, _ in GENERATED}


@pytest.mark.parametrize(("method", "path", "mode"), GENERATED, ids=str)
def test_every_request_is_answered_as_the_document_says(
    server: Running, schema: Any, method: str, path: str, mode: Any
) -> None:
    seen: set[int] = set()

    @settings(max_examples=60 if method == "POST" else 10, suppress_health_check=list(HealthCheck))
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    def exchange(case: Any) -> None:
        seen.add(answered(case, Authorization=f"Bearer {KEY}").status_code)

    exchange()
    assert seen >= GENERATED[method, path, mode], seen
    assert not server.events("computation") and not server.events("failed")
