"""Bodies of requests: what is wrong is told as before, and nobody makes us look at more than a request may hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

pytest.importorskip("fastapi", reason="pip install 'recurra[serve]'")

from recurra.deployment.serving import request as request_module
from recurra.deployment.serving.refusals import Refusal
from recurra.deployment.serving.request import parse_request
from recurra.deployment.serving.schema import ClassifyRequest
from recurra.deployment.serving.settings import ServerLimits

LIMITS = ServerLimits(max_texts=5, max_characters=40_000)


def refusal(body: bytes, limits: ServerLimits = LIMITS) -> tuple[int, str, str]:
    with pytest.raises(Refusal) as caught:
        parse_request(body, limits)
    return caught.value.status, caught.value.code, caught.value.message


def listed(item: bytes, before: bytes = b'{"text": [', after: bytes = b"]}", number: int = 300_000) -> bytes:
    return before + b",".join([item] * number) + after


KEYS = json.dumps({"text": "a", **{f"k{number}": [0] for number in range(150_000)}}).encode()
MANY_TEXTS = "'text' has more than 5 texts; at most 5 are allowed: send several requests"
MANY_VALUES = "the body has more than 261 values; at most 5 texts are allowed: send several requests"
NO_TEXT = "'text' must be a string or a list of strings"
NO_OBJECT = 'the body must be a JSON object, such as {"text": "not bad at all"}'
FLOODS = {
    "numbers": (listed(b"1"), 422, "too_many_texts", MANY_TEXTS),
    "texts": (listed(b'"a"'), 422, "too_many_texts", MANY_TEXTS),
    "a long text before": (listed(b"1", b'{"text": ["' + b"x" * 30_000 + b'",'), 422, "too_many_texts", MANY_VALUES),
    "other keys": (KEYS, 422, "invalid", f"unknown key 'k0'; allowed: {', '.join(ClassifyRequest.model_fields)}"),
    "one key": (listed(b'"text":"a"', b"{", b"}"), 422, "too_many_texts", MANY_VALUES),
    "a key before": (listed(b"[]", b'{"text": [' + b" " * 20_000), 422, "too_many_texts", MANY_VALUES),
    "models": (listed(b'"m"', b'{"text": "a", "model": ['), 422, "too_many_texts", MANY_VALUES),
    "models first": (listed(b'"m"', b'{"model": [', b'], "text": "a"}'), 422, "too_many_texts", MANY_VALUES),
    "wrong models": (listed(b"{}", b'{"text": "a", "model": ['), 422, "invalid", "'model[0]' must be a string"),
    "lists in a text": (listed(b"[]", b'{"text": [[', b"]]}"), 422, "invalid", "'text[0]' must be a string"),
    "an object": (listed(b'"":[]', b'{"text": {', b"}}"), 422, "invalid", NO_TEXT),
    "a list": (listed(b"1", b"[", b"]"), 422, "invalid", NO_OBJECT),
    "depth": (
        b"[" * 100_000,
        400,
        "malformed",
        "the body is not JSON in UTF-8 (recursion limit exceeded at line 1 column 202)",
    ),
    "long numbers": (
        listed(b"9" * 5000, number=400),
        400,
        "malformed",
        "the body is not JSON in UTF-8 (number out of range at line 1 column 4312)",
    ),
    "no UTF-8": (
        listed(b'"\xff"'),
        400,
        "malformed",
        "the body is not JSON in UTF-8 (invalid unicode code point at line 1 column 12)",
    ),
    "a lone surrogate": (
        listed(b'"\\udc00"'),
        400,
        "malformed",
        "the body is not JSON in UTF-8 (lone leading surrogate in hex escape at line 1 column 17)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "status", "code", "message"), FLOODS.values(), ids=FLOODS)
def test_a_flood_is_looked_at_no_further_than_its_beginning(
    body: bytes, status: int, code: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    problems: list[int] = []
    read, first = request_module.from_json, request_module._first

    def from_json(data: bytes, **options: Any) -> Any:
        parsed.append(len(data))
        return read(data, **options)

    def chosen(error: ValidationError, whole: bool) -> Any:
        problems.append(error.error_count())
        return first(error, whole)

    monkeypatch.setattr(request_module, "from_json", from_json)
    monkeypatch.setattr(request_module, "_first", chosen)
    found = refusal(body)
    # Releases of the parser count from the broken byte or from the one before it.
    said = found[2].replace("point at line 1 column 13)", "point at line 1 column 12)")
    assert (*found[:2], said) == (status, code, message)
    assert parsed == [min(len(body), 16 * 1024)] and sum(problems) <= 8


JSON = st.recursive(
    st.none() | st.integers() | st.text(alphabet=',[{"\\a') | st.just("é"),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(alphabet='[,"\\:b'), inner, max_size=4),
    max_leaves=12,
)


def values(document: Any) -> int:
    """Every value but the first follows a comma or an opening bracket; an empty list has a bracket for nothing."""
    if isinstance(document, dict):
        document = list(document.values())
    return max(1, sum(map(values, document))) + 1 if isinstance(document, list) else 1


@settings(max_examples=300)
@given(document=JSON, ascii_only=st.booleans())
def test_values_are_counted_without_parsing(document: Any, ascii_only: bool) -> None:
    body = json.dumps(document, ensure_ascii=ascii_only).encode()
    assert request_module._has_at_most(body, values(document))
    assert not request_module._has_at_most(body, values(document) - 1)


def test_what_looks_like_values_in_a_text_is_none() -> None:
    texts = [",[{" * 10_000, '"' * 20_000, "\\" * 20_000, '\\",[' * 5_000, ""]
    for ascii_only in (True, False):
        body = json.dumps({"text": texts, "model": "m", "recurrences": True}, ensure_ascii=ascii_only).encode()
        request = parse_request(body, LIMITS)
        assert (request.texts, request.model, request.asked.recurrences) == (texts, "m", True)


def test_the_length_comes_before_the_items() -> None:
    assert refusal(b'{"text": [1, 2, 3, 4, 5, 6]}') == (
        422, "too_many_texts", "'text' has 6 texts; at most 5 are allowed: send several requests",
    )  # fmt: skip
    assert refusal(b'{"text": ["a", 2, null]}')[2] == "'text[1]' must be a string"
    assert refusal(json.dumps({"text": ["a", "b" * 40_001]}).encode())[2] == (
        "'text[1]' has 40,001 characters; at most 40,000 are allowed"
    )
    assert refusal(json.dumps({"text": "b" * 40_001}).encode())[2] == (
        "'text' has 40,001 characters; at most 40,000 are allowed"
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"text": NaN}', "'text' must be a string or a list of strings"),
        (b'{"text": "a", "recurrences": 1}', "'recurrences' must be true or false"),
        (b'{"text": "a", "explain": "yes"}', "'explain' must be true or false"),
        (b'{"text": "a", "exit_rule": NaN}', "'exit_rule' must be 'calibrated' or null"),
        (b'{"text": "a", "abstain_below": 1.5}', "'abstain_below' must be a number from 0 to 1, or null"),
        (b'{"text": "a", "abstain_below": NaN}', "'abstain_below' must be a number from 0 to 1, or null"),
        (b'{"text": "a", "abstain_below": true}', "'abstain_below' must be a number from 0 to 1, or null"),
        (b'{"texts": "a"}', "unknown key 'texts' (did you mean 'text'?); allowed: text, model, exit_rule, recurrences, "
         "abstain_below, explain"),
        (b'{"text": "a", "texts": 1, "x": 2}', "unknown key 'texts' (did you mean 'text'?); allowed: text, model, "
         "exit_rule, recurrences, abstain_below, explain"),
        (b"{}", "'text' is missing; add it"),
        (b"[]", 'the body must be a JSON object, such as {"text": "not bad at all"}'),
        (b'{"text": [], "x": 1}', "'text' is an empty list; give at least one"),
        (b'{"text": "a", "model": ["m", ""]}', "'model' holds an empty name; leave 'model' out for the first model"),
    ],
)  # fmt: skip
def test_mistakes_are_told(body: bytes, message: str) -> None:
    assert refusal(body) == (422, "invalid", message)


def test_of_a_key_that_is_there_twice_the_last_counts() -> None:
    assert parse_request(b'{"text": 1, "text": ["a"]}', LIMITS).texts == ["a"]
