"""The server over real sockets: right answers, and clear ones to whatever else comes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recurra import Classifier
from recurra.core.record import read_record
from recurra.deployment.decision import AnyLabels
from recurra.deployment.explanation import explain
from recurra.deployment.serving.bodies import Prediction
from recurra.deployment.serving.limits import ServerLimits
from recurra.deployment.serving.models import ServedModel, name_folders, open_models
from reviews import review_rows
from served import HEAD, Running, eventually, probabilities, prompt_model, prompt_server, running, slow_model

TEXTS = [text for text, _ in review_rows(40, seed=3)]


@pytest.fixture(scope="module")
def folders(run: Path, linear_run: Path) -> dict[str, Path]:
    return {"tiny": run, "linear": linear_run}


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[Running]:
    models = open_models(name_folders([str(folders["tiny"]), f"other={folders['linear']}"]))
    with running(models) as found:
        yield found


def test_answers_are_those_of_the_classifier(server: Running, folders: dict[str, Path]) -> None:
    answer = server.post({"text": TEXTS, "model": ["other", "tiny"]})
    assert [result["model"] for result in answer.json["results"]] == ["other", "tiny"]
    for number, folder in enumerate((folders["linear"], folders["tiny"])):
        classifier = Classifier.open(folder)
        predictions = answer.json["results"][number]["predictions"]
        np.testing.assert_allclose(probabilities(predictions), classifier.predict_proba(TEXTS), atol=1e-6)
        assert [one["label"] for one in predictions] == classifier.predict(TEXTS).tolist()
        assert list(predictions[0]["probabilities"]) == classifier.classes_.tolist()
    one = server.post({"text": TEXTS[0]})
    assert one.json["results"][0]["model"] == "tiny" and len(one.json["results"][0]["predictions"]) == 1
    assert one.headers["content-type"] == "application/json" and one.headers["x-content-type-options"] == "nosniff"


def test_a_doubtful_text_gets_no_label_if_that_is_asked_for(server: Running) -> None:
    plain = server.classify(TEXTS, model="other")
    highest = [max(one["probabilities"].values()) for one in plain]
    least = float(np.median(highest))
    found = server.classify(TEXTS, model="other", abstain_below=least)
    assert 0 < sum(one["abstained"] for one in found) < len(TEXTS)
    for before, one, sure in zip(plain, found, highest, strict=True):
        assert one["abstained"] == (sure < least) and one["probabilities"] == before["probabilities"]
        assert one["label"] == (None if sure < least else before["label"])
    assert "abstained" not in plain[0]


def test_words_are_told_what_they_do(server: Running, folders: dict[str, Path]) -> None:
    texts = [TEXTS[0], "", "!!", TEXTS[1]]
    answer = server.post({"text": texts, "model": ["other", "tiny"], "explain": True})
    for result, folder in zip(answer.json["results"], (folders["linear"], folders["tiny"]), strict=True):
        classifier = Classifier.open(folder)
        said = classifier.predict_proba(texts)
        wanted = explain(classifier.predict_proba, texts, said, classifier.decision, classifier.most_read)
        for one, expected in zip(result["predictions"], wanted, strict=True):
            words, plain = one["words"], expected.plain()
            assert [word["text"] for word in words] == [word["text"] for word in plain]
            assert [word["effect"] for word in words] == pytest.approx([word["effect"] for word in plain], abs=1e-5)
            assert one["remainder"] == pytest.approx(expected.labels[0].remainder, abs=1e-5)
    assert "words" not in server.classify(texts)[0]
    assert server.classify("!!", explain=True)["words"] == []


def test_texts_that_are_longer_than_the_model_reads_are_marked_if_that_is_asked_for(server: Running) -> None:
    texts = [TEXTS[0], "good " * 2_000, ""]
    assert [one.get("cut") for one in server.classify(texts, model="tiny", cut=True)] == [None, True, None]
    # A linear model reads all.
    assert not any("cut" in one for one in server.classify(texts, model="other", cut=True))
    assert not any("cut" in one for one in server.classify(texts, model="tiny"))


def test_explaining_stays_within_the_limits() -> None:
    model, engine = prompt_model()
    words = "a b c d e f g h i j k l m n o p"
    # A request does not wait behind itself: the queue has no room for its texts and their parts together.
    with running([model], ServerLimits(max_texts=8, max_body_bytes=2048, max_waiting_texts=1)) as found:
        for texts, parts in (([words], 8), ([words] * 2, 4), ([words] * 8, 1), ([f"{words} {'q' * 469}"], 4)):
            engine.batches.clear()
            answer = found.post({"text": texts, "explain": True})
            for one in answer.json["results"][0]["predictions"]:
                told = one["words"]
                assert len(told) <= parts and told[0]["start"] == 0
                assert " ".join(word["text"] for word in told) == texts[0]
            assert sum(len(batch) for batch in engine.batches) <= 8 + len(texts)


def test_each_label_of_a_text_is_told_by_its_own_words_within_the_same_limits() -> None:
    model, engine = prompt_model("several")
    decision = AnyLabels(["no", "yes"], [0.7, 0.4], ";")
    several = ServedModel(Classifier(engine, ["no", "yes"], decision=decision), model.description)
    one_label, _ = prompt_model("one")
    texts = ["a b c d e f", "g h", "", "i"]
    with running([several, one_label], ServerLimits(max_texts=8)) as found:
        answer = found.post({"text": texts, "model": ["several", "one"], "explain": True})
        computed = sum(map(len, engine.batches))
        nothing = found.classify("!!", explain=True)
        # It has thresholds, and does not abstain.
        doubtful = found.post({"text": "a", "abstain_below": 0.9})
    assert doubtful.status == 422 and "multi-label model 'several'" in doubtful.json["error"]["message"]
    first, second = (result["predictions"] for result in answer.json["results"])
    assert computed <= 8 + len(texts)
    assert all("words" in one and "words_by_label" not in one for one in second)
    for text, one, plain in zip(texts, first, second, strict=True):
        assert msgspec.convert(one, Prediction, strict=True).words is None and "words" not in one
        told = one["words_by_label"]
        assert [each["label"] for each in told] == one["labels"] and all(each["given"] for each in told)
        for each in told:
            # The runs of words are those of a model of one label: a request may not ask for more than for one.
            assert [word["text"] for word in each["words"]] == [word["text"] for word in plain["words"]]
            for word in each["words"]:
                rest = several.classifier.predict_proba([text[: word["start"]] + text[word["end"] :]])[0]
                place = ["no", "yes"].index(each["label"])
                assert word["effect"] == pytest.approx(one["probabilities"][each["label"]] - rest[place], abs=1e-5)
    assert any(word["effect"] for one in first for each in one["words_by_label"] for word in each["words"])
    assert all(each["words"] == [] for each in nothing["words_by_label"])


# More mistakes within JSON: `tests/unit/deployment/serving/test_bodies.py`.
HOSTILE = {
    "empty body": (b"", 400, "malformed"),
    "cut JSON": (b'{"text": "a', 400, "malformed"),
    "not UTF-8": (b'{"text": "\xff\xfe"}', 400, "malformed"),
    "lone surrogate": (b'{"text": "\\ud800"}', 400, "malformed"),
    "surrogate in UTF-8": (b'{"text": "\xed\xa0\x80"}', 400, "malformed"),
    "two documents": (b'{"text": "a"}{"text": "b"}', 400, "malformed"),
    "deep text": (b'{"text": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", 422, "invalid"),
    "huge number": (b'{"text": ' + b"9" * 100_000 + b"}", 422, "invalid"),
    "not a number": (b'{"text": NaN}', 400, "malformed"),
    "model twice": (b'{"text": "a", "model": ["tiny", "tiny"]}', 422, "invalid"),
    "unknown model": (b'{"text": "a", "model": "tony"}', 404, "unknown_model"),
    "path": (b'{"text": "a", "model": "../tiny"}', 404, "unknown_model"),
    "NUL in the model": (b'{"text": "a", "model": "tiny\\u0000"}', 404, "unknown_model"),
    "long model": (json.dumps({"text": "a", "model": "x" * 10**6}).encode(), 404, "unknown_model"),
    "1e6 characters": (json.dumps({"text": "x" * 10**6}).encode(), 422, "text_too_long"),
    "10 MB": (json.dumps({"text": "x" * 10**7}).encode(), 413, "body_too_large"),
}


@pytest.mark.parametrize(("body", "status", "code"), HOSTILE.values(), ids=HOSTILE)
def test_what_is_wrong_is_told(server: Running, body: bytes, status: int, code: str) -> None:
    answer = server.post(body)
    assert answer.refusal == (status, code)
    assert len(answer.body) < 600 and b"Traceback" not in answer.body and b'.py"' not in answer.body


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
BODIES = st.one_of(
    st.binary(max_size=40),
    JSON,
    st.fixed_dictionaries({"text": JSON}, optional={"model": JSON | st.just("tiny"), "more": JSON}),
    st.fixed_dictionaries({"text": st.text() | st.lists(st.text(), max_size=3)}, optional={"model": st.just("tiny")}),
)


@settings(max_examples=60)
@given(body=BODIES)
@example(
    body={"text": ["a \x00 b", "\x01\x1b[31m", "\u202e\u05e4", "e" + "\u0301" * 300, "x" * 90_000, "a\u2028b\ufeff"]}
)
def test_whatever_comes_is_answered(server: Running, folders: dict[str, Path], body: object) -> None:
    answer = server.post(body)
    if answer.status == 200:
        texts = [body["text"]] if isinstance(body["text"], str) else body["text"]
        expected = Classifier.open(folders["tiny"]).predict_proba(texts)
        np.testing.assert_allclose(probabilities(answer.json["results"][0]["predictions"]), expected, atol=1e-5)
    else:
        assert answer.refusal[0] in {400, 404, 422}


def test_addresses_and_methods(server: Running) -> None:
    assert server.get("/nothing").refusal == (404, "not_found")
    for path in ("/v1/models/../../etc/passwd", "/v1/models/%2e%2e%2fetc%2fpasswd", "/v1/models/tiny%00", "//etc"):
        assert server.get(path).status == 404
    assert server.get("/v1/models/tony").refusal == (404, "unknown_model")
    assert server.get("/v1/classify").refusal == (405, "wrong_method")
    assert server.ask("BREW", "/v1/classify").status in {400, 405}
    assert server.post({"text": "a"}, **{"Content-Type": "text/plain"}).refusal == (415, "not_json")
    assert server.get("/docs").status == 404
    for path in ("/", "/v1/models", "/v1/models/tiny", "/health/live", "/health/ready", "/metrics", "/openapi.json"):
        head = server.ask("HEAD", path)
        assert (head.status, head.body) == (200, b"") and int(head.headers["content-length"]) > 0, path
    assert server.ask("HEAD", "/v1/classify").status == 405 and server.ask("HEAD", "/nothing").status == 404
    assert (
        server.post(b'\xef\xbb\xbf{"text": "a"}', **{"Content-Type": "application/json; charset=utf-8"}).status == 200
    )
    assert server.get("/health/live").json == {"status": "ok"}
    ready = server.get("/health/ready").json
    assert (ready["status"], [one["name"] for one in ready["models"]]) == ("ok", ["tiny", "other"])


def test_models_are_described(server: Running, folders: dict[str, Path]) -> None:
    answer = server.get("/v1/models").json
    assert [model["name"] for model in answer["models"]] == ["tiny", "other"]
    tiny = server.get("/v1/models/tiny").json
    assert tiny == answer["models"][0]
    size = sum(path.stat().st_size for path in (folders["tiny"] / "model").iterdir())
    assert (tiny["labels"], tiny["size_bytes"], tiny["max_length_tokens"]) == (["negative", "positive"], size, 24)
    # A linear model reads a text whole, whatever its data say.
    assert answer["models"][1]["max_length_tokens"] is None
    metrics = read_record(folders["tiny"]).metrics["test"]
    assert tiny["quality"] == {"split": "test", "rows": metrics.rows, "figures": metrics.figures()}
    assert answer["max_texts"] == 256
    # The rest of the document: `test_server_exits.py`.
    document = server.get("/openapi.json").json
    operations = (("/v1/classify", "post"), ("/health/ready", "get"))
    statuses = {(path, method): {*document["paths"][path][method]["responses"]} for path, method in operations}
    assert statuses["/v1/classify", "post"] >= {"200", "400", "404", "408", "413", "415", "422", "429", "503"}
    assert statuses["/health/ready", "get"] == {"200", "500", "503"}
    request = document["components"]["schemas"]["ClassifyRequest"]
    assert len(request["examples"]) == 5 and request["properties"]["text"]["anyOf"][1]["maxItems"] == 256
    assert {server.post(body).status for body in request["examples"]} == {200}


def test_the_examples_of_the_how_to_run(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    document = (Path(__file__).parents[2] / "docs/how-to/serving.md").read_text(encoding="utf-8")
    bodies = re.findall(r"-d '(.*)'", document)
    assert len(bodies) == 3
    for body in bodies:
        renamed = body.replace('"small"', '"tiny"').replace('"large"', '"other"').encode()
        assert server.post(renamed).status == 200
    program = re.findall(r"```python\n(.*?)```", document, re.DOTALL)[0]
    exec(compile(program.replace("http://127.0.0.1:8000", server.url), "serving.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all(line.split()[0] in {"negative", "positive"} for line in lines)


def test_what_is_no_http_is_told_and_who_leaves_early_disturbs_nobody(server: Running) -> None:
    for garbage in (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"HELLO\r\n\r\n", b"GET /\xff\xfe HTTP/1.1\r\n\r\n"):
        answer = server.raw(garbage)
        assert answer.startswith(b"HTTP/1.1 400") and b'{"error":' in answer, garbage
    body = json.dumps({"text": TEXTS}).encode()
    for cut in (0, 10, len(body)):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body[:cut])
    assert server.post({"text": TEXTS[0]}).status == 200
    assert not server.events("computation")


def test_no_text_reaches_the_log_or_the_metrics(server: Running) -> None:
    secret = "my-secret-illness"
    server.post({"text": secret})
    server.post(json.dumps({"text": secret, secret: 1}).encode())
    server.post(b'{"text": "' + secret.encode())
    server.get(f"/v1/models/{secret}")
    server.get(f"/{secret}?q={secret}")
    server.raw(f"{secret} /{secret}\r\n\r\n".encode())
    events = server.events()
    assert secret not in server.log.getvalue() and secret not in server.get("/metrics").body.decode()
    last = next(event for event in reversed(events) if event["status"] == 200 and event["path"] == "/v1/classify")
    assert (last["texts"], last["characters"], last["models"]) == (1, len(secret), ["tiny"])
    assert {event["path"] for event in events} <= {
        "/", "/v1/classify", "/v1/models", "/v1/models/{name}", "/health/live", "/health/ready", "/metrics",
        "/openapi.json", "other",
    }  # fmt: skip


def test_slow_clients_and_slow_models_are_not_waited_for() -> None:
    model, engine = slow_model()
    with running([model], ServerLimits(body_timeout_s=0.4, timeout_s=0.2)) as server:
        for begun in ((HEAD + b"Content-Length: 100\r\n\r\n", b'{"te'), (HEAD,)):
            answer = server.raw(*begun)
            assert answer.startswith(b"HTTP/1.1 408") and b'"too_slow"' in answer
        assert server.raw(b"").startswith(b"HTTP/1.1 408")
        late = server.post({"text": "a"})
        assert late.refusal == (503, "too_late") and late.headers["retry-after"] == "1"
        engine.open.set()
        assert server.post({"text": "b"}).status == 200


def test_connections_have_an_end() -> None:
    model, _ = prompt_model()
    limits = ServerLimits(max_connections=3, body_timeout_s=20)
    with running([model], limits) as server, contextlib.ExitStack() as stack:

        def connect(times: int) -> None:
            for _ in range(times):
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            eventually(lambda: len(server.server.server_state.connections) == times)

        connect(3)
        answer = server.raw(b"")
        assert answer.startswith(b"HTTP/1.1 429") and b"\r\nretry-after: 1\r\n" in answer
        assert b"3 connections are open" in answer
        for others in (2, 0):
            stack.close()
            eventually(lambda: not server.server.server_state.connections)
            connect(others)
            assert server.post({"text": "the third"}).status == 200


def test_a_failure_says_nothing_of_the_text() -> None:
    with prompt_server() as server:
        answer = server.post({"text": "spoil my-secret"})
        assert answer.refusal == (500, "failed") and b"secret" not in answer.body
        (event,) = server.events("computation")
        assert event["error"] == "ValueError" and any("served.py" in place for place in event["where"])
        assert "my-secret" not in server.log.getvalue()
        assert server.post({"text": "fine"}).status == 200


def test_who_leaves_while_two_models_compute_is_no_error() -> None:
    (one, first), (two, second) = slow_model("one"), slow_model("two")
    body = json.dumps({"text": "gone", "model": ["one", "two"]}).encode()
    with running([one, two]) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert first.begun.acquire(timeout=20) and second.begun.acquire(timeout=20)
        eventually(lambda: any(event.get("refused") == "client_gone" for event in server.events()))
        first.open.set()
        second.open.set()
        assert server.post({"text": "a", "model": ["one", "two"]}).status == 200
        gc.collect()
        assert not server.events("loop")


def test_the_end_answers_what_was_accepted() -> None:
    model, engine = slow_model()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        with running([model], ServerLimits(batch_texts=1)) as server:
            answers = [pool.submit(server.post, {"text": f"text {number}"}) for number in range(6)]
            eventually(lambda: b'recurra_waiting_texts{model="slow"} 5.0' in server.get("/metrics").body)
            # The server is told to end while six requests are under way; the engine opens a little later.
            pool.submit(lambda: (time.sleep(0.3), engine.open.set()))
        assert [answer.result(20).status for answer in answers] == [200] * 6
    with pytest.raises(ConnectionRefusedError):
        server.get("/health/live")
