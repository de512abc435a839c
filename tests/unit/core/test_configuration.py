"""Configurations fail at construction and name key, value and cure."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from recurra.core.configuration import (
    MAX_DEPTH,
    MAX_TEXT_BYTES,
    HashedSettings,
    Settings,
    content_hash,
    derive_seed,
    override,
    parse_yaml,
    read_yaml,
    write_yaml,
)
from recurra.core.errors import ConfigurationError


class Inner(Settings):
    """A section."""

    rate: float = Field(default=0.1, gt=0)


class Outer(Settings):
    """A configuration with sections."""

    name: str
    epochs: int = 3
    inner: Inner = Inner()


class Part(HashedSettings):
    """A section of what is hashed."""

    scale: float = 1


class Whole(HashedSettings):
    """Of its keys with defaults, the first records hold one."""

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({"epochs"})

    name: str
    epochs: int = 3
    rates: tuple[float, float] = (0.9, 0.95)
    names: list[str] = Field(default_factory=list)
    part: Part = Part()
    parts: dict[int, Part] = Field(default_factory=dict)
    note: str | None = None


WORDS = st.text(max_size=6)
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "a", "epoch": 3}, "unknown key 'epoch' (did you mean 'epochs'?); allowed: name, epochs, inner"),
        ({"name": "a", "inner": {"rat": 1}}, "unknown key 'inner.rat' (did you mean 'rate'?); allowed: rate"),
        ({"epochs": 3}, "key 'name' is missing; add it"),
        ({"name": "a", "epochs": "many"}, "'epochs' is \"many\": input should be a valid integer"),
        ({"name": "a", "inner": {"rate": 0}}, "'inner.rate' is 0: input should be greater than 0"),
        ({"name": "a", "inner": {"rate": float("inf")}}, "'inner.rate' is Infinity: "),
    ],
)
def test_a_wrong_value_names_key_value_and_cure(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Outer.parse(values, source="study.yaml")
    assert str(caught.value).startswith("study.yaml: ") and message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("assignment", "key", "value"),
    [
        ("rate=3e-5", "rate", 3e-5),
        ("epochs = 4", "epochs", 4),
        ("name='3e-5'", "name", 3e-5),
        ("name=2024-02-01", "name", "2024-02-01"),
        ("name=a=b", "name", "a=b"),
        ("name=", "name", None),
        ("models=[linear, baseline]", "models", ["linear", "baseline"]),
    ],
)
def test_overrides_read_what_a_person_means(assignment: str, key: str, value: Any) -> None:
    assert override({}, [assignment])[key] == value
    # They reach into sections and leave the original alone.
    before = {"inner": {"rate": 1, "other": 3}}
    after = override(before, ["inner.rate=2", f"new.deep.{assignment}"])
    assert after == {"inner": {"rate": 2, "other": 3}, "new": {"deep": {key: value}}} and before["inner"]["rate"] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1", "is not valid YAML"),
        (b"- 1\n- 2", "holds a list; a mapping of keys to values is needed"),
        (b"a: 1\nb: 2\na: 3\n", "is not valid YAML: the key 'a' is given twice in \"<unicode string>\", line 1"),
        (b"- 1\n- {a: 1, b: 2, b: 1}\n", "the key 'b' is given twice in"),
        (b"\xff\xfe", "not UTF-8 text; give the path of a YAML file"),
        (None, "No such file or directory; give the path of a YAML file"),
    ],
)
def test_an_unusable_file_is_one_clear_line(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        Outer.load(path)
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.dictionaries(WORDS, JSON, max_size=3))
def test_yaml_comes_back_as_written(values: dict[str, Any]) -> None:
    assert yaml.safe_load(write_yaml(values)) == values


@given(JSON, JSON)
def test_a_hash_tells_values_apart_but_for_the_order_of_keys(first: Any, second: Any) -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(inner) for key, inner in reversed(value.items())}
        return [turned(inner) for inner in value] if isinstance(value, list) else value

    assert content_hash(first) == content_hash(turned(first))
    same = json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
    assert (content_hash(first) == content_hash(second)) == same


def test_what_is_hashed_holds_its_first_keys_and_what_is_not_at_its_default() -> None:
    whole = Whole(name="a")
    assert whole.plain() == {"name": "a", "epochs": 3}
    assert Whole.parse(whole.plain()) == whole == Whole(name="a", rates=(0.9, 0.95), names=[], part=Part(scale=1.0))
    changed = {"rates": [0.9, 0.99], "names": ["b"], "part": {"scale": 2.0}, "parts": {"1": {}}, "note": ""}
    for key, value in changed.items():
        other = Whole.parse({"name": "a", key: value})
        assert other.plain() == {"name": "a", "epochs": 3, key: value}
        assert Whole.parse(other.plain()) == other
    with pytest.raises(TypeError, match="Wrong has no key epoch, which first records hold"):

        class Wrong(Whole):
            """Names a key that is not there."""

            _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({"epoch"})


def test_hashes_are_of_finite_numbers_and_seeds_of_purposes_differ_and_stay_as_they_are() -> None:
    assert len(content_hash({}, 8)) == 8
    with pytest.raises(ValueError, match="not JSON compliant"):
        content_hash(float("nan"))
    derived = [derive_seed(seed, *purpose) for seed in range(50) for purpose in (("a",), ("b",), ("a", 1), ("a", "b"))]
    assert len(set(derived)) == len(derived) and all(0 <= seed < 2**31 for seed in derived)
    # Another value here would change every result of every seed.
    assert [derive_seed(0, "weights"), derive_seed(1, "order")] == [31069315, 144485013]


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 30)
)
MERGES = "a0: &a0 {x: 1, y: 2}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40))

HOSTILE = {
    "an anchor that holds itself": "a: &a [*a]\n",
    "brackets": "a: " + "[" * 100_000,
    "questions": "? " * 100_000,
    "laughs": LAUGHS,
    "merges": MERGES,
    "a merge by its tag": "a: &a {x: 1}\nb: {!!merge x: *a}\n",
    "many values": "a: [" + "1," * (MAX_TEXT_BYTES // 2 - 3) + "*b]",
    "a long file": "# " + "x" * MAX_TEXT_BYTES + "\na: 1\n",
    "a number of 5,000 digits": "a: " + "9" * 5000,
    "a number in base 60": "a: 1" + ":59" * 40_000,
    "half a character": 'a: "x\\ud800y"',
    "no finite number": "a: .nan",
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


@pytest.mark.parametrize("name", ["laughs", "merges"])
def test_what_is_refused_is_not_built(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recurra.core.configuration.MAX_VALUES_BYTES", 2**17)
    tracemalloc.start()
    try:
        with pytest.raises(yaml.YAMLError):
            parse_yaml(HOSTILE[name])
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        ("epochs", "cannot read the override 'epochs'; write key=value, e.g. epochs=3"),
        ("=3", "cannot read the override '=3'"),
        ("epochs.max=3", "'epochs' is not a section"),
        ("name=[1", "the value is not valid YAML"),
        ("key=" + "[" * 100_000, f"more than {MAX_DEPTH} levels"),
        ("key=&a [*a]", "values that are not plain (Circular reference detected)"),
        ("key=" + "9" * 5000, "values that are not plain"),
        ("a." * 20_000 + "b=1", f"the key has more than {MAX_DEPTH} parts"),
        ("a" * 100_000, "write key=value"),
    ],
)
def test_an_unreadable_override_is_one_short_line_and_has_the_same_bounds(assignment: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        override({"epochs": 1}, [assignment])
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


def test_aliases_and_files_of_a_usual_size_are_read_and_merges_refused() -> None:
    base = {"rate": 1, "steps": [1, 2]}
    assert parse_yaml("base: &base {rate: 1, steps: [1, 2]}\nsecond: *base\n") == {"base": base, "second": base}
    with pytest.raises(yaml.YAMLError, match="'<<' is not allowed; write keys out"):
        parse_yaml("base: &base {rate: 1}\nfirst: {<<: *base, rate: 2}\n")
    # Many times a study.
    values = {f"key {number}": [number, "word", {"a": 1.5}] for number in range(1000)}
    assert parse_yaml(write_yaml(values)) == values
