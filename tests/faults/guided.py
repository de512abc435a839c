"""Coverage-guided fuzzing of the parsers that are ours.

Atheris (libFuzzer) changes bytes until they reach branches of a parser that no bytes reached before. What a parser
takes is held against another reader of the same format; what it does not take must be an error of ours. Each target is
a process of its own, for libFuzzer ends it; inputs that broke a rule stay in its folder.
"""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.figures import Account, Figure

_NAME = "fuzz.csv"
_COLUMNS = ("text", "label")
# Of an input.
_MOST_BYTES = 4096


def read_csv(data: bytes) -> None:
    """Rows of CSV are those that Python's own reader finds, and are the same once written and read again."""
    from recurra.core.errors import DataError
    from recurra.data.formats import csv_rows, decoded_lines, raw_lines

    def rows(content: bytes) -> list[tuple[Any, ...]]:
        lines = decoded_lines(raw_lines(io.BytesIO(content)), _NAME)
        return [row for _, row in csv_rows(lines, _NAME, _COLUMNS, (), ",")]

    try:
        found = rows(data)
    except DataError:
        return
    text = data.decode("utf-8").removeprefix("\ufeff")
    header, *wanted = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    names = [name.strip() for name in header]
    folded = [name.casefold() for name in names]
    places = [names.index(column) if column in names else folded.index(column) for column in _COLUMNS]
    _same(found, [tuple(row[place] for place in places) for row in wanted])
    again = io.StringIO()
    csv.writer(again).writerows([_COLUMNS, *found])
    _same(rows(again.getvalue().encode()), found)


def read_jsonl(data: bytes) -> None:
    """Rows of JSONL are those of Python's own reader."""
    from recurra.core.errors import DataError
    from recurra.data.formats import decoded_lines, json_lines, raw_lines, record_rows

    try:
        lines = decoded_lines(raw_lines(io.BytesIO(data)), _NAME)
        found = [row for _, row in record_rows(json_lines(lines, _NAME), _NAME, _COLUMNS, ())]
    except DataError:
        return
    values = [json.loads(line) for line in data.decode("utf-8-sig").split("\n") if line.strip()]
    folded = [{key.strip().casefold(): cell for key, cell in reversed(value.items())} for value in values]
    exact = [{**fold, **value} for fold, value in zip(folded, values, strict=True)]
    _same(json.dumps(found), json.dumps([tuple(value[column] for column in _COLUMNS) for value in exact]))


def read_yaml(data: bytes) -> None:
    """Values of YAML are those of PyYAML, come back once they were written, and are plain."""
    import yaml

    from recurra.core.configuration import parse_yaml, write_yaml

    try:
        text = data.decode("utf-8")
        found = parse_yaml(text)
    except (UnicodeDecodeError, yaml.YAMLError):
        return
    _same(repr(found), repr(yaml.safe_load(text)))
    if isinstance(found, dict) and all(isinstance(key, str) for key in found):
        _same(repr(parse_yaml(write_yaml(found))), repr(found))


def read_assignment(data: bytes) -> None:
    """An assignment changes the one key that it names."""
    from recurra.core.configuration import override
    from recurra.core.errors import ConfigurationError

    text = data.decode("utf-8", "replace")
    before: dict[str, Any] = {"kept": {"inside": 1}, "word": "same"}
    try:
        after = override(before, [text])
    except ConfigurationError:
        return
    key = text.partition("=")[0].strip().split(".")[0]
    _same({name: value for name, value in after.items() if name != key},
          {name: value for name, value in before.items() if name != key})  # fmt: skip


def read_plan(data: bytes) -> None:
    """A plan that was read is the same once it was written and read again."""
    from recurra.core.errors import ConfigurationError
    from recurra.models.adaptation.plan import SharingPlan

    try:
        plan = SharingPlan.parse(data.decode("utf-8", "replace"), 12)
    except ConfigurationError:
        return
    again = SharingPlan.parse(str(plan), 12)
    _same(again.order, plan.order)
    _same(again.stored if plan.recurrences > 1 else plan.stored, plan.stored)
    if not all(0 <= layer < 12 for layer in plan.order):
        raise AssertionError(f"{plan} names a layer that is not there")


def read_request(data: bytes) -> None:
    """A request that is taken is JSON, and keeps every limit."""
    from recurra.deployment.serving.bodies import parse_request
    from recurra.deployment.serving.limits import Refusal, ServerLimits

    limits = ServerLimits(max_texts=4, max_characters=40)
    try:
        request = parse_request(data, limits)
    except Refusal as refusal:
        if refusal.status not in (400, 422):
            raise AssertionError(f"refused with {refusal.status}") from refusal
        return
    value = json.loads(data.removeprefix(b"\xef\xbb\xbf"))
    texts = [value["text"]] if isinstance(value["text"], str) else value["text"]
    _same(list(request.texts), texts)
    if not 1 <= len(texts) <= limits.max_texts or max(map(len, texts)) > limits.max_characters:
        raise AssertionError("beyond a limit")


TARGETS: dict[str, tuple[Callable[[bytes], None], list[str], list[bytes]]] = {
    "csv": (
        read_csv, ["recurra.data.formats"],
        [b"text,label\na,b\n", b'"text",label\r\n"a ""b""\nc",d\r\n', b"\xef\xbb\xbfLabel,TEXT,id\n\nx,y,1\n"],
    ),
    "jsonl": (
        read_jsonl, ["recurra.data.formats"],
        [b'{"text": "a", "label": 1}\n', b'{"Text": "\\u00e9", "label": null, "more": [1, {"a": 2}]}\n\n'],
    ),
    "yaml": (
        read_yaml, ["recurra.core.configuration"],
        [b"a: 1\nb: [x, {c: 3e-5}]\n", b"a: &x [1]\nb: *x\n", b"? |\n  k\n: 'v'\n<<: {a: 1}\n"],
    ),
    "assignments": (
        read_assignment, ["recurra.core.configuration"],
        [b"word=3e-5", b"kept.inside=[a, b]", b"new.key = {a: 1}"],
    ),
    "plans": (read_plan, ["recurra.models.adaptation.plan"], [b"0 (3 4)x2 5", b"0-2 5", b" (0-3) x12 11"]),
    "requests": (
        read_request, ["recurra.deployment.serving.bodies"],
        [b'{"text": "a"}', b'{"text": ["a", "b"], "model": ["x"], "explain": true, "abstain_below": 0.5}'],
    ),
}  # fmt: skip


def _same(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{found!r:.300} instead of {wanted!r:.300}")


def _fuzz(name: str, arguments: list[str]) -> None:
    import atheris

    target, modules, _ = TARGETS[name]
    with atheris.instrument_imports(include=modules):
        for module in modules:
            __import__(module)
    atheris.Setup(["fuzz", *arguments], target)
    atheris.Fuzz()


def fuzz(names: list[str], seconds: float, root: Path, seed: int) -> Account:
    """Fuzzes targets for so long each, in folders below ``root``."""
    account = Account()
    for name in names:
        corpus = root / "guided" / name
        corpus.mkdir(parents=True)
        for number, content in enumerate(TARGETS[name][2]):
            (corpus / f"seed-{number}").write_bytes(content)
        ended = subprocess.run(
            [sys.executable, "-m", "faults.guided", name, str(corpus), f"-max_total_time={seconds:.0f}",
             f"-seed={seed}", f"-max_len={_MOST_BYTES}", "-timeout=10", "-rss_limit_mb=2048",
             f"-artifact_prefix={corpus}-broken-", "-print_final_stats=1"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
        said = ended.stderr
        runs = re.findall(r"stat::number_of_executed_units:\s*(\d+)", said)
        edges = re.findall(r"cov: (\d+)", said)
        account.figures += [
            Figure("guided", f"{name}: inputs", int(runs[-1]) if runs else 0, least=1),
            Figure("guided", f"{name}: branches reached", int(edges[-1]) if edges else 0, least=1),
        ]
        if ended.returncode != 0:
            account.failures.append(f"{name}: {said[-1500:]}")
    account.figures.append(Figure("guided", "parsers that broke a rule", len(account.failures), most=0))
    return account


if __name__ == "__main__":
    _fuzz(sys.argv[1], sys.argv[2:])
