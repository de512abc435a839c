"""The door that every request passes, before routes that are made up; and the page, its examples and its policy."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from recurra.deployment.serving.application import Application, describe, read_examples, read_page
from recurra.deployment.serving.limits import ApiKeys, Rate, ServerLimits
from recurra.deployment.serving.observation import EventLog
from served import Answer

KEY = "0123456789abcdef-key"
PATHS = ("/", "/v1/classify", "/v1/models", "/health/live", "/health/ready", "/metrics", "/openapi.json")


async def fine(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


class Guarded:
    """A door, its log and its metrics, before routes that answer as a test wants."""

    def __init__(self, act: Callable[[Scope, Receive, Send], Any] = fine, **options: Any) -> None:
        self.log = io.StringIO()
        self.application = Application([], **{"limits": ServerLimits(), **options}, log=EventLog(self.log))
        self.application.router = act
        self.metrics = self.application.metrics

    def ask(self, path: str, method: str = "GET", client: str = "192.0.2.1", **headers: str) -> Answer:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "path": path, "headers": raw, "client": (client, 7)}
        asyncio.run(self.application(scope, receive, send))
        (start,) = (message for message in sent if message["type"] == "http.response.start")
        names = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], names, b"".join(message.get("body", b"") for message in sent))

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@pytest.mark.parametrize("begun", [False, True])
def test_an_error_of_ours_is_told_without_what_it_says_but_not_in_an_answer_that_has_begun(*, begun: bool) -> None:
    async def breaks(scope: Scope, receive: Receive, send: Send) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError("my-secret")

    guarded = Guarded(breaks)
    answer = guarded.ask("/v1/models")
    status = 200 if begun else 500
    failure, request = guarded.events
    number = request["request_id"]
    assert (failure["level"], failure["event"], failure["error"]) == ("error", "request", "ZeroDivisionError")
    assert failure["request_id"] == number and answer.status == request["status"] == status
    assert "my-secret" not in guarded.log.getvalue() and b"my-secret" not in answer.body
    assert guarded.counted("recurra_refused_total", code="failed") == (not begun)
    assert guarded.counted("recurra_requests_total", path="/v1/models", method="GET", status=str(status)) == 1
    if begun:
        assert answer.body == b"" and "refused" not in request
        return
    assert answer.headers["x-request-id"] == number and request["refused"] == "failed"
    said = {"code": "failed", "message": f"the server failed; its log says why under {number}"}
    assert answer.json["error"] == said
    for operations in describe(ServerLimits(), ["a"], with_key=False)["paths"].values():
        for operation in operations.values():
            assert "X-Request-ID" in operation["responses"]["500"]["description"]


def test_every_answer_is_numbered_counted_and_timed() -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["counts"] = {"texts": 3}
        await asyncio.sleep(0.03)
        await fine(scope, receive, send)

    guarded = Guarded(slow)
    numbers = [guarded.ask("/health/live", "HEAD").headers["x-request-id"] for _ in range(3)]
    assert len(set(numbers)) == 3 and all(number.isalnum() and len(number) == 16 for number in numbers)
    for event, number in zip(guarded.events, numbers, strict=True):
        assert 30 <= event.pop("ms") < 5000
        event.pop("time")
        assert event == {
            "level": "info", "event": "request", "request_id": number, "method": "HEAD", "path": "/health/live",
            "status": 204, "texts": 3,
        }  # fmt: skip
    assert guarded.counted("recurra_requests_total", path="/health/live", method="HEAD", status="204") == 3
    assert guarded.counted("recurra_request_seconds_count", path="/health/live") == 3
    assert 0.09 <= guarded.counted("recurra_request_seconds_sum", path="/health/live") < 15


def test_only_names_of_ours_are_counted_and_logged() -> None:
    guarded = Guarded()
    for path, method, named in [
        *[(path, "GET", (path, "GET")) for path in PATHS],
        ("/v1/models/my-secret", "DELETE", ("/v1/models/{name}", "DELETE")),
        ("/my-secret", "PUT", ("other", "PUT")),
        ("/v1/modelsmy-secret", "PATCH", ("other", "PATCH")),
        ("/health/live/", "OPTIONS", ("other", "OPTIONS")),
        ("/", "MY-SECRET", ("/", "other")),
        ("/", "HEAD", ("/", "HEAD")),
        ("/v1/classify", "POST", ("/v1/classify", "POST")),
    ]:
        assert guarded.ask(path, method).status == 204
        assert (guarded.events[-1]["path"], guarded.events[-1]["method"]) == named
        assert guarded.counted("recurra_requests_total", path=named[0], method=named[1], status="204") == 1
    assert b"my-secret" not in guarded.metrics.page().lower()


@pytest.mark.parametrize("path", [*PATHS, "/v1/models/a", "/v1", "/none"])
def test_a_key_opens_what_is_guarded(path: str) -> None:
    guarded = Guarded(keys=ApiKeys([KEY]))
    closed = path.startswith("/v1") or path == "/metrics"
    for wrong in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": KEY[:-1]}):
        answer = guarded.ask(path, **wrong)
        assert answer.status == (401 if closed else 204)
        if closed:
            assert answer.refusal == (401, "no_key") and answer.headers["www-authenticate"] == "Bearer"
            assert "Authorization: Bearer KEY" in answer.json["error"]["message"]
    for right in ({"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}):
        assert guarded.ask(path, **right).status == 204
    assert guarded.counted("recurra_refused_total", code="no_key") == (3 if closed else 0)


def test_who_asks_too_often_waits_and_nobody_else_does() -> None:
    guarded = Guarded(keys=ApiKeys([KEY]), limits=ServerLimits(rate=Rate(2, 3600)))
    assert [guarded.ask("/").status for _ in range(3)] == [204, 204, 429]
    refused = guarded.ask("/v1/models")
    # A wrong key counts as the address that it comes from.
    assert refused.refusal == (429, "rate_limited")
    assert 0 < int(refused.headers["retry-after"]) <= 3600
    assert "more than 2 requests in 3,600 s" in refused.json["error"]["message"]
    assert [guarded.ask("/v1/models", **{"x-api-key": KEY}).status for _ in range(3)] == [204, 204, 429]
    clients = ("192.0.2.2", "2001:db8::1", "2001:db8::2", "2001:db8::3")
    assert [guarded.ask("/", client=client).status for client in clients] == [204, 204, 204, 429]
    # Who watches the server is never turned away.
    assert {guarded.ask("/health/live").status for _ in range(5)} == {204}
    assert guarded.counted("recurra_refused_total", code="rate_limited") == 4


@given(st.lists(st.one_of(st.text(), st.sampled_from(["</script>", "<!--<script>", '"];alert(1);//', "\\"]))))
def test_no_example_leaves_its_string_and_the_policy_names_the_script(examples: list[str]) -> None:
    examples = [text.encode("utf-8", "ignore").decode("utf-8") for text in examples]
    content, headers = read_page(examples)
    page = content.decode("utf-8")
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 1 and "addEventListener" in scripts[0]
    stated = re.search(r"^const EXAMPLES = (.*);$", scripts[0], re.MULTILINE)
    assert stated is not None and json.loads(stated[1]) == examples
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    for tag, blocks in (("script", scripts), ("style", re.findall(r"<style>(.*?)</style>", page, re.DOTALL))):
        digests = [base64.b64encode(hashlib.sha256(block.encode("utf-8")).digest()).decode("ascii") for block in blocks]
        assert digests and policy.pop(f"{tag}-src") == " ".join(f"'sha256-{digest}'" for digest in digests)
    nothing = dict.fromkeys(("default-src", "base-uri", "form-action", "frame-ancestors"), "'none'")
    assert policy == {**nothing, "connect-src": "'self'", "img-src": "data:"}
    assert headers["Cache-Control"] == "no-cache"


def test_six_texts_of_a_file_are_offered_and_no_more_of_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "examples.txt"
    path.write_text("\ufeffone\n\n  two \n" + "x" * 5000 + "\n" + "more\n" * 9, encoding="utf-8")
    assert read_examples(path) == ["one", "two", "x" * 1000, "more", "more", "more"]
    path.write_bytes(b"y" * 2**21 + b"\nlate\n\xff")
    assert read_examples(path) == ["y" * 1000]
    lines = [f"{number}\u2028{'y' * 20_000}" for number in range(7)]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert read_examples(path) == [line[:1000] for line in lines[:6]]
    path = tmp_path / "examples.csv"
    path.write_text('label,text\ngood,"one, two"\nbad,\n' + "good,three\n" * 9, encoding="utf-8")
    assert read_examples(path) == ["one, two", *["three"] * 5]
