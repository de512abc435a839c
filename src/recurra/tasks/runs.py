"""Builds a run's configuration from the models, teachers and files that a user names, with hashes of their content."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from recurra.core.best_run import find_run
from recurra.core.configuration import content_hash, names_in, read_yaml
from recurra.core.errors import ConfigurationError, did_you_mean, unknown
from recurra.core.record import LabelRunRecord, holds_any_record, read_any_record
from recurra.core.sealed import describe_file
from recurra.data.configuration import RunData
from recurra.data.tables import TABLE_FORMATS, check_path
from recurra.deployment.export.manifest import is_export, read_manifest
from recurra.models.adaptation.source import ENCODER_NAMES, SMALL_ENCODER, TOKENIZER_FILES, is_hub_name
from recurra.models.folder import CONFIG_NAME, WEIGHTS_NAME
from recurra.models.names import MODEL_KEYS
from recurra.tasks.base import (
    ANSWERS_FILE,
    ANSWERS_HASH,
    ENCODER,
    ENCODER_SHA256,
    METHOD,
    SMALL_AND_WORDS,
    START_KEYS,
    TEACHABLE,
    TEACHER,
    WORDS_AND_ENCODER,
    RunConfig,
    TeacherConfig,
    control_of,
    controls,
    encoder_of,
    own_keys,
    presets,
)
from recurra.tasks.study_data import file_hash, hash_of_files
from recurra.training.protocols import DEFAULT_PROTOCOL, ProtocolConfig, finetuning_for

# Models that third-party methods train, by name.
PEERS: Mapping[str, Mapping[str, Any]] = {"setfit": {ENCODER: "minilm", METHOD: "setfit"}}
# A model as a user names it: a preset, a control, an encoder, a file; or keys that change one of these.
Entry = str | Mapping[str, Any]
_OWN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")


def own_name(entry: Mapping[str, Any], kind: str, taken: Collection[str]) -> str:
    """The name of a variant, an entry of some kind with some keys changed.

    Raises:
        ConfigurationError: If the name is missing, cannot name a folder, or is taken.
    """
    name = entry.get("name")
    if not isinstance(name, str) or not _OWN_NAME.fullmatch(name):
        raise ConfigurationError(
            f"{kind} with the name {name!r}: give 'name', of up to 60 letters, digits, '.', '_' and '-'"
        )
    if name in taken:
        raise ConfigurationError(f"{kind} '{name}': this name is taken; give the variant its own name")
    return name


def read_variant(values: Mapping[str, Any]) -> dict[str, Any]:
    """A preset with some keys changed: ``{name: recurrent-R3, preset: recurrent, num_recurrences: 3}``.

    Or a pretrained encoder: ``{name: looped, encoder: minilm, plan: "0 (3 4)x2 5"}``. It is the same run as a model
    file of that name with the same keys. ``teacher`` names its teachers as
    `recurra.training.protocols.ProtocolConfig` does, and they are trained under the same protocol; ``method`` trains it
    instead of the protocol (`recurra.training.setfit`). Every other key is one of
    `recurra.models.configuration.RecurraConfig`, whose value is checked where the model is configured, before any run.

    Raises:
        ConfigurationError: For an unknown key, a name that is taken, or two things to start from.
    """
    entry = {key: value for key, value in values.items() if value is not None or key not in START_KEYS}
    name = own_name(entry, "model", (*controls(), *presets(), *PEERS))
    for key, value in entry.items():
        if key not in ("name", *START_KEYS, *MODEL_KEYS):
            allowed = ", ".join(("name", *START_KEYS, *MODEL_KEYS))
            hint = did_you_mean(key, MODEL_KEYS)
            raise ConfigurationError(f"model '{name}': unknown key '{key}'{hint}; allowed: {allowed}")
        if key in START_KEYS and not isinstance(value, str):
            raise ConfigurationError(f"model '{name}': '{key}' is {value!r}; write it in quotes")
    preset, allowed_presets = entry.get("preset"), [*presets(), *TEACHABLE, WORDS_AND_ENCODER]
    if preset is not None and preset not in allowed_presets:
        raise ConfigurationError(f"model '{name}': {unknown('preset', preset, allowed_presets)}")
    starts = ("preset" in entry) != (ENCODER in entry) or preset == WORDS_AND_ENCODER
    if starts == (ANSWERS_FILE in entry):
        raise ConfigurationError(
            f"model '{name}': give either preset or encoder, what the model starts from, or answers"
        )
    return entry


def locate_teacher(folder: str) -> TeacherConfig:
    """Identifies the teacher in a folder; the folder of a comparison stands for its recommended run.

    Raises:
        ConfigurationError: If it holds no classifier.
        CheckpointError: If what it holds cannot be read.
    """
    path = find_run(folder).folder
    if is_export(path):
        identity = content_hash(["export", read_manifest(path).content_hash])
    elif holds_any_record(path):
        record = read_any_record(path)
        if not isinstance(record, LabelRunRecord):
            raise ConfigurationError(f"teacher '{folder}' is a run of {record.task}; a classifier is needed")
        identity = content_hash(["run", record.content_hash])
    elif (path / CONFIG_NAME).is_file() and (path / WEIGHTS_NAME).is_file():
        # The same weights with other names of labels, or other tokens, are another teacher.
        parts = [path / name for name in (WEIGHTS_NAME, CONFIG_NAME, *TOKENIZER_FILES) if (path / name).is_file()]
        identity = content_hash(["folder", *([part.name, describe_file(part).sha256] for part in parts)])
    else:
        raise ConfigurationError(
            f"teacher '{folder}' is neither a run, nor an export, nor a Hugging Face folder with {CONFIG_NAME} and "
            f"{WEIGHTS_NAME}; in a study it may be the name of one of its models"
        )
    return TeacherConfig(name=path.resolve().name[:100], folder=str(path), identity=identity)


def model_name(model: Entry) -> str:
    """Name in tables: a variant's own name, a file's name without its ending, the last part of an encoder's name."""
    if isinstance(model, Mapping):
        return str(model["name"])
    if Path(model).suffix in {".yaml", ".yml"}:
        return Path(model).stem
    return Path(model).resolve().name if _is_encoder(model) else model


def _is_encoder(name: str) -> bool:
    return (Path(name) / CONFIG_NAME).is_file() or is_hub_name(name)


def resolve_model(model: Entry) -> tuple[str, dict[str, Any]]:
    """The name and the changed keys of a model, as a model file would hold them.

    Raises:
        ConfigurationError: If there is no such model.
    """
    if isinstance(model, Mapping):
        keys = read_variant(model)
        return keys.pop("name"), keys
    small = {SMALL_AND_WORDS: {"preset": WORDS_AND_ENCODER, ENCODER: SMALL_ENCODER}}
    known = {**controls(), **{key: {} for key in presets()}, **PEERS, **small}
    if model in known:
        return model, dict(known[model])
    if Path(model).suffix in {".yaml", ".yml"}:
        keys = read_yaml(model)
        for key in START_KEYS:
            if key in keys and keys[key] is None:
                raise ConfigurationError(f"model file '{model}': '{key}' has no value; give one, or leave it out")
        return Path(model).stem, keys
    if model in ENCODER_NAMES or _is_encoder(model):
        return model_name(model), {ENCODER: model}
    allowed = [*known, *ENCODER_NAMES, "the folder of an encoder", "OWNER/NAME of the hub", "a .yaml file"]
    raise ConfigurationError(unknown("model", model, allowed))


def changed_keys(config: RunConfig, decided: Collection[str], by: str, vocab_size: int | None) -> dict[str, Any]:
    """The keys of the model's configuration that a run changes, with the rows of the token table if they are known.

    Raises:
        ConfigurationError: For a key that something else decides, or too small a table.
    """
    keys = own_keys(config.model_overrides)
    for key in sorted(set(decided) & set(keys)):
        raise ConfigurationError(f"model '{config.model}': '{key}' is decided by the {by}; leave it out")
    if vocab_size is not None and keys.get("vocab_size", vocab_size) < vocab_size:
        raise ConfigurationError(
            f"model '{config.model}': 'vocab_size' is {keys['vocab_size']}, the tokenizer has {vocab_size} "
            "pieces; leave vocab_size out, or lower data.trained_vocab_size"
        )
    return {**({} if vocab_size is None else {"vocab_size": vocab_size}), **keys}


def requested_teachers(name: str, overrides: Mapping[str, Any], protocol: ProtocolConfig) -> list[str]:
    """Names or folders of the teachers of a model: its own, else those of the protocol that trains it."""
    if METHOD in overrides:
        return []
    protocol_teacher = "" if control_of(name, overrides) is not None else protocol.teacher
    return names_in(str(overrides.get(TEACHER) or protocol_teacher))


# Keys of a protocol that still affect the training, or the record, of models that no protocol trains in epochs.
_KEYS_OF_METHODS = {"evaluation_batch_size"}
_KEYS_OF_TAUGHT_CONTROLS = _KEYS_OF_METHODS | {"distillation_weight"}


def refuse_unused_keys(
    name: str,
    overrides: Mapping[str, Any],
    keys: Mapping[str, Any],
    protocol: str | Mapping[str, Any] | None,
    training: ProtocolConfig,
) -> None:
    """Refuses a protocol and keys that a user gave and that would change nothing in a model's ``training``.

    Raises:
        ConfigurationError: If one is given.
    """
    is_control, used = control_of(name, overrides) is not None, set[str]()
    if METHOD in overrides:
        used = _KEYS_OF_METHODS
    elif is_control and overrides.get(TEACHER):
        used, protocol = _KEYS_OF_TAUGHT_CONTROLS, None
    elif not is_control:
        training.refuse_unused(keys, taught=bool(requested_teachers(name, overrides, training)))
        return
    for key, value in {**({} if protocol is None else {"protocol": protocol}), **keys}.items():
        if key not in used:
            cure = f"write model.{key}={value}" if key == TEACHER and is_control else "leave it out"
            raise ConfigurationError(f"{key} is {value!r}, and no training protocol trains {name}; {cure}")


def default_protocol(name: str, overrides: Mapping[str, Any], rows: Callable[[], int]) -> tuple[str, str]:
    """The default protocol of a model and a line on why; with an encoder it depends on the number of training rows."""
    if ENCODER not in overrides or METHOD in overrides or control_of(name, overrides) is not None:
        return DEFAULT_PROTOCOL, ""
    protocol, why = finetuning_for(rows())
    return protocol, f"protocol: {protocol}, for {why} (choose with --protocol)"


def make_run(
    model: Entry,
    data: RunData,
    protocol: ProtocolConfig,
    *,
    seed: int,
    precision: str,
    overrides: Mapping[str, Any] | None = None,
    teachers: Sequence[TeacherConfig] | None = None,
) -> RunConfig:
    """Builds a run's configuration from what a user names.

    Args:
        teachers: Its teachers; None looks for the folders that model or protocol name.
    """
    name, file_overrides = resolve_model(model)
    changed = {**file_overrides, **(overrides or {})}
    kind = control_of(name, changed)
    changed = {**controls().get(kind or "", {}), **changed}
    untaught_control = kind is not None and not changed.get(TEACHER)
    source = encoder_of(changed)
    if source is not None:
        changed[ENCODER_SHA256] = source.sha256
    if ANSWERS_FILE in changed:
        path = Path(changed[ANSWERS_FILE])
        check_path(path, TABLE_FORMATS)
        changed[ANSWERS_HASH] = hash_of_files([path])
    has_method = METHOD in changed
    if has_method or (kind is not None and not untaught_control):
        # The protocol does not train it, so that there are no epochs to choose from.
        protocol = protocol.model_copy(update={"max_epochs": 1, "curriculum_epochs": 0, "teacher": ""})
    teacher_names = requested_teachers(name, changed, protocol)
    if teachers is None:
        teachers = [locate_teacher(teacher_name) for teacher_name in teacher_names]
    protocol = protocol.for_model(taught=bool(teacher_names) and kind is None)
    if untaught_control:
        # A placeholder: no protocol trains a control, which is in the tables of all protocols.
        protocol = ProtocolConfig(name=name, learning_rate=1.0, batch_size=32, max_epochs=1)
    return RunConfig.parse(
        {
            "model": name,
            "model_overrides": changed,
            "data": data.plain(),
            "data_hash": file_hash(data),
            "protocol": protocol.plain(),
            "seed": 0 if untaught_control else seed,
            "precision": "fp32" if untaught_control and kind != WORDS_AND_ENCODER else precision,
            "teachers": [teacher.plain() for teacher in teachers],
        },
        source="run",
    )
