"""YAML of any making ends soon, in little memory, with a value or one line."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from recurra.core.configuration import MAX_DEPTH, MAX_NODES, MAX_TEXT_BYTES, override, parse_yaml, read_yaml, write_yaml
from recurra.core.errors import ConfigurationError

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 30)
)
MERGES = "a0: &a0 {x: 1, y: 2}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40))

HOSTILE = {
    "an anchor that holds itself": ("a: &a [*a]\n", "'*a' stands inside what it names"),
    "a mapping that holds itself": ("a: &a {b: {c: *a}}\n", "'*a' stands inside what it names"),
    "a merge of itself": ("a: &a\n  <<: *a\n", "'*a' stands inside what it names"),
    "a document that holds itself": ("&a {b: *a}\n", "'*a' stands inside what it names"),
    "brackets": ("a: " + "[" * 100_000, f"more than {MAX_DEPTH} levels"),
    "braces": ("{a: " * 50_000, f"more than {MAX_DEPTH} levels"),
    "dashes": ("- " * 100_000, f"more than {MAX_DEPTH} levels"),
    "questions": ("? " * 100_000, f"more than {MAX_DEPTH} levels"),
    "laughs": (LAUGHS, f"more than {MAX_NODES:,} values"),
    "merges": (MERGES, f"more than {MAX_NODES:,} values"),
    "many values": ("a: [" + "1," * (MAX_NODES + 1) + "]", f"more than {MAX_NODES:,} values"),
    "a long file": ("# " + "x" * MAX_TEXT_BYTES + "\na: 1\n", f"more than {MAX_TEXT_BYTES:,}"),
    "a number of 5,000 digits": ("a: " + "9" * 5000, "a number of 5,000 characters; at most 400"),
    "a number in base 60": ("a: 1" + ":59" * 100_000, "a number of 300,001 characters; at most 400"),
    "half a character": ('a: "x\\ud800y"', "half of a surrogate pair"),
    "half a character as a key": ('{"\\ud800": 1}', "half of a surrogate pair"),
    "no finite number": ("a: .nan", "'nan' is no finite number"),
    "an endless number": ("a: [1, -.inf]", "'-inf' is no finite number"),
    "a number beyond all floats": ("a: 1.0e+999", "'inf' is no finite number"),
    "no number": ("a: !!int many", "'many' is no int"),
    "nothing as a number": ("a: !!int ''", "'' is no int"),
    "no truth": ("a: !!bool perhaps", "'perhaps' is no bool"),
    "bytes": ("a: !!binary aGk=", "the tag 'tag:yaml.org,2002:binary' is not read"),
    "a set": ("a: !!set {b, c}", "the tag 'tag:yaml.org,2002:set' is not read"),
    "an object": ("a: !!python/object/apply:os.getcwd []", "os.getcwd' is not read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_line_soon_and_in_little_memory(name: str, tmp_path: Path) -> None:
    text, said = HOSTILE[name]
    path = tmp_path / "study.yaml"
    path.write_text(text, encoding="utf-8")
    begun = time.process_time()
    with pytest.raises(ConfigurationError) as caught:
        read_yaml(path)
    assert time.process_time() - begun < 30
    message = str(caught.value)
    assert said in message and str(path) in message
    assert "\n" not in message and len(message) < 700


@pytest.mark.parametrize("name", ["brackets", "laughs", "merges"])
def test_what_is_refused_is_not_built(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(yaml.YAMLError):
            parse_yaml(HOSTILE[name][0])
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("key=" + "[" * 100_000, f"more than {MAX_DEPTH} levels"),
        ("key=&a [*a]", "'*a' stands inside what it names"),
        ("key=" + "9" * 5000, "a number of 5,000 characters"),
        ("a." * 20_000 + "b=1", f"the key has more than {MAX_DEPTH} parts"),
        ("a" * 100_000, "write key=value"),
    ],
)
def test_an_override_has_the_same_bounds(assignment: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        override({}, [assignment])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


def test_aliases_and_merges_of_a_usual_size_are_read() -> None:
    text = "base: &base {rate: 1, steps: [1, 2]}\nfirst: {<<: *base, rate: 2}\nsecond: *base\n"
    base = {"rate": 1, "steps": [1, 2]}
    assert parse_yaml(text) == {"base": base, "first": {**base, "rate": 2}, "second": base}


def test_a_date_is_a_word_so_that_it_can_be_written_as_json() -> None:
    assert override(parse_yaml("title: 2024-01-31\n"), ["name=2024-02-01"]) == {
        "title": "2024-01-31",
        "name": "2024-02-01",
    }


@given(st.integers(1, MAX_DEPTH + 5))
def test_the_bound_on_depth_is_exact(levels: int) -> None:
    text = "[" * levels + "]" * levels
    if levels > MAX_DEPTH:
        with pytest.raises(yaml.YAMLError, match="levels lie inside each other"):
            parse_yaml(text)
    else:
        assert str(parse_yaml(text)) == text


def test_a_file_that_is_a_hundred_times_a_study_is_read() -> None:
    values = {f"key {number}": [number, "word", {"a": 1.5}] for number in range(5000)}
    assert parse_yaml(write_yaml(values)) == values
