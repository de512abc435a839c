"""YAML of any making ends soon, in little memory, with a value or one line."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest
import yaml

from recurra.core.configuration import MAX_DEPTH, MAX_TEXT_BYTES, override, parse_yaml, read_yaml, write_yaml
from recurra.core.errors import ConfigurationError

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 30)
)
MERGES = "a0: &a0 {x: 1, y: 2}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40))

HOSTILE = {
    "an anchor that holds itself": "a: &a [*a]\n",
    "a mapping that holds itself": "a: &a {b: {c: *a}}\n",
    "a merge of itself": "a: &a\n  <<: *a\n",
    "a document that holds itself": "&a {b: *a}\n",
    "brackets": "a: " + "[" * 100_000,
    "braces": "{a: " * 50_000,
    "dashes": "- " * 100_000,
    "questions": "? " * 100_000,
    "laughs": LAUGHS,
    "merges": MERGES,
    "a merge by its tag": "a: &a {x: 1}\nb: {!!merge x: *a}\n",
    "many values": "a: [" + "1," * (MAX_TEXT_BYTES // 2 - 3) + "*b]",
    "a long file": "# " + "x" * MAX_TEXT_BYTES + "\na: 1\n",
    "a number of 5,000 digits": "a: " + "9" * 5000,
    "a number in base 60": "a: 1" + ":59" * 80_000,
    "a number in base 16": "a: 0x" + "f" * 200_000,
    "half a character": 'a: "x\\ud800y"',
    "half a character as a key": '{"\\ud800": 1}',
    "no finite number": "a: .nan",
    "an endless number": "a: [1, -.inf]",
    "a number beyond all floats": "a: 1.0e+999",
    "no number": "a: !!int many",
    "nothing as a number": "a: !!int ''",
    "no truth": "a: !!bool perhaps",
    "no date": "a: !!timestamp never",
    "bytes": "a: !!binary aGk=",
    "a set": "a: !!set {b, c}",
    "a list as a key": "? [a]\n: b",
    "an object": "a: !!python/object/apply:os.getcwd []",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_line_soon_and_in_little_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(HOSTILE[name], encoding="utf-8")
    begun = time.process_time()
    with pytest.raises(ConfigurationError) as caught:
        read_yaml(path)
    assert time.process_time() - begun < 30
    message = str(caught.value)
    assert str(path) in message and "\n" not in message and len(message) < 700


@pytest.mark.parametrize("name", ["brackets", "laughs", "merges"])
def test_what_is_refused_is_not_built(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(yaml.YAMLError):
            parse_yaml(HOSTILE[name])
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        ("key=" + "[" * 100_000, f"more than {MAX_DEPTH} levels"),
        ("key=&a [*a]", "no plain value (Circular reference detected)"),
        ("key=" + "9" * 5000, "no plain value"),
        ("a." * 20_000 + "b=1", f"the key has more than {MAX_DEPTH} parts"),
        ("a" * 100_000, "write key=value"),
    ],
)
def test_an_override_has_the_same_bounds(assignment: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        override({}, [assignment])
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


def test_aliases_of_a_usual_size_are_read_and_merges_refused() -> None:
    base = {"rate": 1, "steps": [1, 2]}
    assert parse_yaml("base: &base {rate: 1, steps: [1, 2]}\nsecond: *base\n") == {"base": base, "second": base}
    with pytest.raises(yaml.YAMLError, match="'<<' is not read; write the keys out"):
        parse_yaml("base: &base {rate: 1}\nfirst: {<<: *base, rate: 2}\n")


def test_a_date_is_a_word_so_that_it_can_be_written_as_json() -> None:
    assert override(parse_yaml("title: 2024-01-31\n"), ["name=2024-02-01"]) == {
        "title": "2024-01-31",
        "name": "2024-02-01",
    }


def test_a_file_that_is_a_hundred_times_a_study_is_read() -> None:
    values = {f"key {number}": [number, "word", {"a": 1.5}] for number in range(5000)}
    assert parse_yaml(write_yaml(values)) == values
