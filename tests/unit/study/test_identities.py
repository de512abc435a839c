"""What is hashed may get keys: none moves a run that is recorded, or breaks the seal of a file that is written."""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, create_model

from committed import committed
from exported import export_record
from language_records import exits_record, language_record
from recurra.core.configuration import HashedSettings, Settings
from recurra.core.errors import CheckpointError
from recurra.core.exits_record import ExitsRecord
from recurra.core.packed import read_study_bytes
from recurra.core.record import SCHEMA_VERSION, AnyRecord, CodeRecord, read_any_record, write_record
from recurra.core.record_parts import Part
from recurra.core.sealed import FileEntry, Sealed
from recurra.deployment.export.manifest import CalibrationRecord, ExportManifest
from recurra.deployment.export_record import ExportedExits, ExportRecord
from recurra.tasks.base import RunConfig, tasks
from recurra.tasks.runs import locate_teacher

LATER, DEFAULT = "a_later_key", 7
# The seeds of a model are alike, and the golden identities are of all runs.
SOME = committed()[::7]


@cache
def grown(cls: type[BaseModel], every: type[BaseModel] = BaseModel) -> type[Any]:
    """A subclass with the key `LATER`, whose value is `DEFAULT` unless it is given, down to the innermost class."""
    changed: dict[str, Any] = {}
    for name, field in cls.model_fields.items():
        annotation = _grown_type(field.annotation, every)
        if annotation is not field.annotation:
            changed[name] = (annotation, ... if field.is_required() else field.get_default(call_default_factory=True))
    if issubclass(cls, every):
        changed[LATER] = (int, DEFAULT)
    return create_model(f"Grown{cls.__name__}", __base__=cls, **changed)


def _grown_type(annotation: Any, every: type[BaseModel]) -> Any:
    if isinstance(annotation, type) and not get_args(annotation) and issubclass(annotation, BaseModel):
        return grown(annotation, every)
    parts = get_args(annotation)
    swapped = tuple(_grown_type(part, every) for part in parts)
    if all(new is old for new, old in zip(swapped, parts, strict=True)):
        return annotation
    origin = get_origin(annotation)
    return reduce(or_, swapped) if origin in (Union, UnionType) else origin[swapped]


@pytest.fixture(scope="module")
def records() -> list[AnyRecord]:
    return [read_any_record(path) for path in SOME]


def test_a_new_key_moves_no_run_that_is_recorded_and_breaks_no_record(records: list[AnyRecord]) -> None:
    data = reduce(or_, (grown(task.data_config) for task in tasks()))
    run = create_model("GrownRun", __base__=grown(RunConfig), data=(data, ...))

    def with_key(values: dict[str, Any], place: str | None, value: int) -> dict[str, Any]:
        return {**values, LATER: value} if place is None else {**values, place: {**values[place], LATER: value}}

    assert {record.task for record in records} == {"classification", "language modelling"}
    for record, path in zip(records, SOME, strict=True):
        config = run.parse(record.config)
        assert (config.config_hash, config.run_id) == (record.config_hash, record.run_id)
        assert config.plain() == record.config
        for place in (None, "data", "protocol"):
            assert getattr(config if place is None else getattr(config, place), LATER) == DEFAULT
            written = run.parse(with_key(record.config, place, DEFAULT))
            assert written == config and written.config_hash == record.config_hash
            changed = run.parse(with_key(record.config, place, DEFAULT + 1))
            assert changed.config_hash != record.config_hash and changed.run_id != record.run_id
            assert changed.plain() == with_key(record.config, place, DEFAULT + 1)
        found = grown(type(record)).read(path, what="it", cure="")
        assert (getattr(found, LATER), getattr(found.data, LATER)) == (DEFAULT, DEFAULT)
        assert found.model_dump(exclude_defaults=True) == record.model_dump(exclude_defaults=True)


def sealed_files() -> dict[type[Sealed], Sealed]:
    """One of each, with all of its parts."""
    export = export_record("r", "fp16")
    calibration = CalibrationRecord(exits=[1], asked=0.99, source="rows", rows=0)
    exits = ExportedExits(calibration=calibration, splits=export.splits, taken={"test": {1: 3}})
    manifest = ExportManifest(
        run_id="r", record_hash="0" * 64, format="safetensors", precision="fp16", created="2026-11-20T12:00:00+00:00",
        code=CodeRecord(version="0.1.0"), label_names=["no", "yes"], max_length=24, pad_token_id=0, cleaning="c",
        cleaning_steps=[], files={"a": FileEntry(size_bytes=1, sha256="0" * 64)}, check=export.check,
        exits=calibration,
    )  # fmt: skip
    made = [export.model_copy(update={"exits": exits}), exits_record(language_record()), manifest]
    return {type(file): file for file in made}


@pytest.mark.parametrize("cls", sealed_files(), ids=lambda cls: cls.__name__)
def test_a_new_key_breaks_no_seal(cls: type[Sealed], tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    written = sealed_files()[cls].write(path)
    found = grown(cls).read(path, what="it", cure="make it again")
    assert getattr(found, LATER) == DEFAULT and found.content_hash == written.content_hash
    assert getattr(found, "check", found).__class__.__name__.startswith("Grown")
    # Nothing of it is written before somebody asks for it, so that older versions read on.
    configured = grown(cls, HashedSettings)
    found = configured.model_validate(written.plain())
    assert found.write(path).content_hash == written.content_hash
    assert cls.read(path, what="it", cure="make it again") == written
    other = found.model_copy(update={LATER: DEFAULT + 1}).write(path)
    assert other.content_hash != written.content_hash
    assert configured.read(path, what="it", cure="make it again") == other
    with pytest.raises(CheckpointError, match=LATER):
        cls.read(path, what="it", cure="make it again")


@pytest.mark.parametrize(("cls", "pattern"), [(ExportRecord, "exports/*/*.json"), (ExitsRecord, "runs/*/exits.json")])
def test_a_new_key_breaks_no_seal_of_a_committed_file(cls: type[Sealed], pattern: str) -> None:
    paths = committed(pattern)
    assert paths
    for path in paths:
        known = cls.read(path, what="it", cure="").plain()
        assert grown(cls).read(path, what="it", cure="") == grown(cls).model_validate(known)


@pytest.mark.parametrize("task", ["classification", "language modelling"])
def test_a_new_key_of_a_record_is_written_for_who_asks(task: str, records: list[AnyRecord], tmp_path: Path) -> None:
    record = next(record for record in records if record.task == task and record.schema_version == SCHEMA_VERSION - 1)
    later = grown(type(record), HashedSettings).model_validate(record.plain())
    written = write_record(tmp_path, later)
    # A run of one configuration may stand in several studies.
    same = committed(f"runs/{record.run_id}/record.json")
    original = next(path for path in same if read_any_record(path).content_hash == record.content_hash)
    # Version and hash, the first two keys, are those of the version that writes.
    assert written.read_bytes().split(b"\n")[3:] == read_study_bytes(original).split(b"\n")[3:]
    write_record(tmp_path, later.model_copy(update={LATER: DEFAULT + 1}))
    with pytest.raises(CheckpointError, match=LATER):
        read_any_record(written)


def test_every_hashed_class_may_get_keys() -> None:
    """A class inside a hashed one that is no `HashedSettings` would write a new key at its default."""
    for cls in (RunConfig, *sealed_files()):
        assert not [inner for inner in inside(cls) if not issubclass(inner, HashedSettings | Part)]
        assert all(issubclass(inner, HashedSettings) for inner in inside(cls) if issubclass(inner, Settings))


def inside(cls: type[BaseModel]) -> set[type[BaseModel]]:
    """A class and every class that its values are made of."""
    found = {cls}
    waiting = [field.annotation for field in cls.model_fields.values()]
    while waiting:
        annotation = waiting.pop()
        waiting += getattr(annotation, "__args__", ())
        if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in found:
            found.add(annotation)
            waiting += [field.annotation for field in annotation.model_fields.values()]
    return found


def test_a_foreign_teacher_is_its_weights_its_labels_and_its_tokens(tmp_path: Path) -> None:
    names = "model.safetensors", "config.json", "tokenizer.json"
    for name in names:
        (tmp_path / name).write_text("{}", encoding="utf-8")
    identities = [locate_teacher(str(tmp_path)).identity]
    for name in names:
        (tmp_path / name).write_text('{"a": 1}', encoding="utf-8")
        identities.append(locate_teacher(str(tmp_path)).identity)
    (tmp_path / "README.md").touch()
    assert len({*identities}) == 4 and locate_teacher(str(tmp_path)).identity == identities[-1]
