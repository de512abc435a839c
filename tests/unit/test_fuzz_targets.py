"""What guided fuzzing calls: it says nothing of good input, and notices a parser that is wrong."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from faults.guided import TARGETS
from faults.mutations import mutate_value
from recurra.core import configuration
from recurra.data import formats
from recurra.deployment.serving import bodies
from recurra.models.adaptation.plan import SharingPlan


@pytest.mark.parametrize("name", TARGETS)
def test_good_and_broken_input_is_no_complaint(name: str) -> None:
    target, _, seeds = TARGETS[name]
    for seed in (*seeds, *(seed[:-2] for seed in seeds), b"", b"\x00", b"\xff\xfe", b"[" * 5000):
        target(seed)


def without_last_row(rows: Any) -> Any:
    return lambda *arguments: iter([*rows(*arguments)][:-1])


@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_that_is_wrong_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parse, parse_yaml, override = SharingPlan.parse, configuration.parse_yaml, configuration.override
    wrong: dict[str, tuple[Any, str, Any]] = {
        "csv": (formats, "csv_rows", without_last_row(formats.csv_rows)),
        "jsonl": (formats, "json_lines", without_last_row(formats.json_lines)),
        "yaml": (configuration, "parse_yaml", lambda text: {**parse_yaml(text), "more": 1}),
        "assignments": (configuration, "override", lambda *values: {**override(*values), "word": "other"}),
        "plans": (
            SharingPlan, "parse", lambda text, layers: dataclasses.replace(parse(text, layers), coda=(len(text) % 2,)),
        ),
        "requests": (bodies, "parse_request", lambda body, limits: bodies._DECODER.decode(body)),
    }  # fmt: skip
    monkeypatch.setattr(*wrong[name])
    target, _, seeds = TARGETS[name]
    seeds = {"assignments": [b"new=1"], "requests": [b'{"text": "%s"}' % (b"a" * 41)]}.get(name, seeds)
    with pytest.raises(AssertionError):
        for seed in seeds:
            target(seed)


def test_a_value_of_any_depth_is_changed_and_the_one_that_was_given_is_not() -> None:
    value: Any = "end"
    for number in range(20_000):
        value = [value] if number % 2 else {"a": value}
    found, depth = mutate_value(random.Random(1), value), 0
    assert found is not value
    while not isinstance(value, str):
        value, depth = value[0] if isinstance(value, list) else value["a"], depth + 1
    assert depth == 20_000
