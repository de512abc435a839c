"""One run as a typed, frozen configuration: a model, data, a protocol, a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, SerializeAsAny, field_validator, model_validator

from recurra.core.configuration import HashedSettings, Settings, content_hash, read_yaml
from recurra.core.errors import ConfigurationError, did_you_mean, unknown
from recurra.core.record import LabelRunRecord, holds_any_record, read_any_record
from recurra.data.configuration import RunData
from recurra.data.tables import TABLE_FORMATS, check_path
from recurra.deployment.export.manifest import is_export, read_manifest
from recurra.models.adaptation.source import ENCODER_NAMES, SMALL_ENCODER
from recurra.models.folder import CONFIG_NAME, WEIGHTS_NAME
from recurra.models.names import MODEL_KEYS
from recurra.tasks.profile import (
    ANSWERS_FILE,
    ANSWERS_HASH,
    ENCODER,
    ENCODER_SHA256,
    METHOD,
    PEERS,
    SMALL_AND_WORDS,
    START_KEYS,
    TEACHABLE,
    TEACHER,
    WORDS_AND_ENCODER,
    check_model,
    control_of,
    controls,
    data_task,
    encoder_of,
    presets,
    task_claiming,
)
from recurra.training.protocols import LANGUAGE_PROTOCOLS, PROTOCOLS, ProtocolConfig


class ModelVariant(Settings):
    """A preset with some keys changed: ``{name: recurrent-R3, preset: recurrent, num_recurrences: 3}``.

    Or a pretrained encoder: ``{name: looped, encoder: minilm, plan: "0 (3 4)x2 5"}``. It is the same run as a model
    file of that name with the same keys. Every other key is one of `recurra.models.configuration.RecurraConfig`; the
    values are checked where the model is configured, before any run.

    Attributes:
        teacher: Whom it learns from, named as in `recurra.training.protocols.ProtocolConfig` and trained under the same
            protocol. None takes the protocol's, if it has one.
        method: Who trains it in place of the protocol: ``setfit`` (`recurra.training.setfit`); none is the protocol.
    """

    model_config = ConfigDict(frozen=True, extra="allow", validate_default=True, allow_inf_nan=False)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=60)
    preset: str | None = None
    encoder: str | None = None
    plan: str | None = None
    teacher: str | None = None
    method: str | None = None
    answers: str | None = None

    @field_validator("name")
    @classmethod
    def _own_name(cls, value: str) -> str:
        if value in (*controls(), *presets(), *PEERS):
            raise ValueError("that is a preset's name; give the variant a name of its own")
        return value

    @field_validator("preset")
    @classmethod
    def _known_preset(cls, value: str | None) -> str | None:
        allowed = [*presets(), *TEACHABLE, WORDS_AND_ENCODER]
        if value is not None and value not in allowed:
            raise ValueError(unknown("preset", value, allowed))
        return value

    @model_validator(mode="after")
    def _one_start(self) -> ModelVariant:
        one = (self.preset is None) != (self.encoder is None) or self.preset == WORDS_AND_ENCODER
        if one == (self.answers is not None):
            raise ValueError("give either preset or encoder, what the model starts from, or answers")
        return self

    @model_validator(mode="after")
    def _known_keys(self) -> ModelVariant:
        for key in self.model_extra or {}:
            if key not in MODEL_KEYS:
                allowed = ", ".join(("name", *START_KEYS, *MODEL_KEYS))
                raise ValueError(f"unknown key '{key}'{did_you_mean(key, MODEL_KEYS)}; allowed: {allowed}")
        return self

    @property
    def overrides(self) -> dict[str, Any]:
        """What it starts from and the changed keys, as a model file would hold them."""
        start = {key: getattr(self, key, None) for key in START_KEYS}
        return {**{key: value for key, value in start.items() if value is not None}, **(self.model_extra or {})}


class ProtocolVariant(Settings):
    """A training protocol with some keys changed: ``{name: distil, base: finetune, teacher: minilm}``.

    Every other key is one of `recurra.training.protocols.ProtocolConfig`.
    """

    model_config = ConfigDict(frozen=True, extra="allow", validate_default=True, allow_inf_nan=False)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=60)
    base: str
    models: list[str] | None = None

    @field_validator("name")
    @classmethod
    def _own_name(cls, value: str) -> str:
        if value in PROTOCOLS or value in LANGUAGE_PROTOCOLS:
            raise ValueError("that is a protocol's name; give the variant a name of its own")
        return value


def _reader(variant: type[Settings], what: str) -> BeforeValidator:
    """Reads a mapping as a variant: a plain union would name pydantic's own branches in its messages."""

    def parse(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        try:
            return variant.parse(value, source=f"{what} '{value.get('name', '')}'")
        except ConfigurationError as error:
            raise ValueError(str(error)) from error

    return BeforeValidator(parse)


ModelEntry = Annotated[str | ModelVariant, _reader(ModelVariant, "model")]
ProtocolEntry = Annotated[str | ProtocolVariant, _reader(ProtocolVariant, "protocol")]


def teacher_names(text: str) -> list[str]:
    """Names or folders of teachers, separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


class TeacherConfig(HashedSettings):
    """One teacher of a run.

    Attributes:
        run_id: If it is a run of the same study, which lies beside the run; empty if it is a folder.
        identity: Hash of what lies there, so that another teacher is another run.
    """

    name: str
    run_id: str = ""
    folder: str = ""
    identity: str = ""


def locate_teacher(folder: str) -> TeacherConfig:
    """Looks at the folder of a teacher.

    Raises:
        ConfigurationError: If it holds no classifier.
        CheckpointError: If what it holds cannot be read.
    """
    place = Path(folder)
    if is_export(place):
        identity = content_hash(["export", read_manifest(place).content_hash])
    elif holds_any_record(place):
        record = read_any_record(place)
        if not isinstance(record, LabelRunRecord):
            raise ConfigurationError(f"teacher '{folder}' is a run of {record.task}; a classifier is needed")
        identity = content_hash(["run", record.content_hash])
    elif (place / CONFIG_NAME).is_file() and (place / WEIGHTS_NAME).is_file():
        with (place / WEIGHTS_NAME).open("rb") as stream:
            identity = content_hash(["folder", hashlib.file_digest(stream, "sha256").hexdigest()])
    else:
        raise ConfigurationError(
            f"teacher '{folder}' is neither a run, nor an export, nor a Hugging Face folder with {CONFIG_NAME} and "
            f"{WEIGHTS_NAME}; in a study it may be the name of one of its models"
        )
    return TeacherConfig(name=place.resolve().name[:100], folder=folder, identity=identity)


Precision = Literal["fp32", "bf16", "fp16"]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


@cache
def control_protocol(name: str) -> ProtocolConfig:
    """What stands for the training protocol of a control, which has none of ours; it is in the tables of all."""
    return ProtocolConfig(name=name, learning_rate=1.0, batch_size=32, max_epochs=1)


def _parse_data(value: Any) -> RunData:
    """Whose data a mapping describes, its task says; left to pydantic, messages would name every task's keys."""
    if isinstance(value, RunData):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of keys to values is needed, at least name")
    config: type[RunData] = task_claiming(value).data_config
    return config.parse(value, source=f"data '{value.get('name', '')}'")


DataEntry = Annotated[SerializeAsAny[RunData], BeforeValidator(_parse_data)]


class RunConfig(HashedSettings):
    """One run: a model, data, a protocol and a seed.

    Attributes:
        model_overrides: Keys of the model configuration on top of the preset; ``preset`` names another base, or
            ``encoder`` and ``plan`` a pretrained encoder and which of its layers are shared; ``teacher`` whom it learns
            from, if others of the same protocol do not.
        data_hash: Hash of the user's files, so that a changed file is a changed run.
        seed: Seed of weights, batch order and dropout. The data have their own ``split_seed``.
    """

    _FIRST_KEYS: ClassVar[frozenset[str]] = frozenset({"model_overrides", "data_hash", "seed", "precision"})

    model: str
    model_overrides: dict[str, Any] = Field(default_factory=dict)
    data: DataEntry
    data_hash: str | None = None
    protocol: ProtocolConfig
    seed: Seed = 0
    precision: Precision = "fp32"
    teachers: list[TeacherConfig] = Field(default_factory=list)

    def model_post_init(self, _: object) -> None:
        """Checks that model and data belong together."""
        check_model(self.data, self.model, self.model_overrides)

    @property
    def task(self) -> str:
        """Name of the task that it trains for."""
        return str(data_task(self.data).name)

    @property
    def is_control(self) -> bool:
        """Whether its model is a control, which no training protocol trains; taught or not."""
        return self.control is not None

    @property
    def answers(self) -> str | None:
        """The file of the answers by which alone its model is known; none of any other model."""
        return self.model_overrides.get(ANSWERS_FILE)

    @property
    def control(self) -> str | None:
        """The control that its model is; none if it is none."""
        return control_of(self.model, self.model_overrides)

    @property
    def needs_torch(self) -> bool:
        """Whether torch is loaded for it: not for a linear model of n-grams that no teacher taught."""
        return not self.is_control or bool(self.teachers) or ENCODER in self.model_overrides

    @property
    def is_repeated(self) -> bool:
        """Whether training protocol and seed make another run of it: not of a control, unless it learns from one."""
        return not self.is_control or bool(self.teachers)

    @property
    def label(self) -> str:
        """The model's name where it is shown."""
        return str(data_task(self.data).label(self.model, self.model_overrides))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copies with changes; what was derived from the old values is derived anew."""
        copied = super().model_copy(update=update, deep=deep)
        for derived in ("config_hash", "run_id"):
            copied.__dict__.pop(derived, None)
        return copied

    @cached_property
    def config_hash(self) -> str:
        """Identity of the run: equal hashes mean equal configurations."""
        return content_hash(self.plain())

    @cached_property
    def run_id(self) -> str:
        """Readable and unique: data, protocol, part, model, training protocol, seed, and the hash's first digits."""
        data = Path(self.data.name).stem if self.data_hash else self.data.name
        parts = [data, self.data.reading, *filter(None, [self.data.part]), self.label]
        if self.is_repeated:
            parts += [self.protocol.name, f"s{self.seed}"]
        slug = "-".join("".join(c if c.isalnum() or c in "._" else "-" for c in part) for part in parts)
        # A name that begins with a dash would be taken for an option, one with a dot would be hidden.
        return f"{slug[:100].lstrip('-.') or 'run'}-{self.config_hash[:8]}"


def model_name(model: str | ModelVariant) -> str:
    """Name in tables: of a variant its own, of a file that of the file without its ending, of a folder its own."""
    if isinstance(model, ModelVariant):
        return model.name
    if Path(model).suffix in {".yaml", ".yml"}:
        return Path(model).stem
    return Path(model).resolve().name if _is_encoder(model) else model


def _is_encoder(name: str) -> bool:
    return (Path(name) / CONFIG_NAME).is_file()


def resolve_model(name: str | ModelVariant | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the name and the overrides of a model given as preset, control, encoder, YAML file or variant.

    Raises:
        ConfigurationError: If there is no such model.
    """
    if isinstance(name, Mapping):
        name = ModelVariant.parse(name, source="model")
    if isinstance(name, ModelVariant):
        return name.name, name.overrides
    small = {SMALL_AND_WORDS: {"preset": WORDS_AND_ENCODER, ENCODER: SMALL_ENCODER}}
    known = {**controls(), **{key: {} for key in presets()}, **PEERS, **small}
    if name in known:
        return name, dict(known[name])
    if Path(name).suffix in {".yaml", ".yml"}:
        return Path(name).stem, read_yaml(name)
    if name in ENCODER_NAMES or _is_encoder(name):
        return model_name(name), {ENCODER: name}
    allowed = [*known, *ENCODER_NAMES, "the folder of an encoder", "a .yaml file"]
    raise ConfigurationError(unknown("model", name, allowed))


def file_hash(data: RunData) -> str | None:
    """Hash of the files that a user's data come from, or none for a corpus by name."""
    paths = [Path(name) for name in data.files if Path(name).is_file()]
    return hash_of_files(paths) if paths else None


def hash_of_files(paths: Sequence[Path]) -> str:
    """Hash of the content of files, in their order."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


def asked_teachers(overrides: Mapping[str, Any], protocol: ProtocolConfig) -> list[str]:
    """Names or folders of whom a model learns from: its own teachers, else those of the protocol."""
    return teacher_names(str(overrides.get(TEACHER) or protocol.teacher))


def make_run(
    model: str | ModelVariant,
    data: RunData,
    protocol: ProtocolConfig,
    *,
    seed: int,
    precision: str,
    overrides: Mapping[str, Any] | None = None,
    teachers: Sequence[TeacherConfig] | None = None,
) -> RunConfig:
    """Builds a run's configuration from what a person names.

    Args:
        teachers: Whom it learns from; none looks for the folders that the protocol names.
    """
    name, file_overrides = resolve_model(model)
    changed = {**file_overrides, **(overrides or {})}
    kind = control_of(name, changed)
    changed = {**controls().get(kind or "", {}), **changed}
    control = kind is not None and not changed.get(TEACHER)
    source = encoder_of(changed)
    if source is not None:
        changed[ENCODER_SHA256] = source.sha256
    if ANSWERS_FILE in changed:
        path = Path(changed[ANSWERS_FILE])
        check_path(path, TABLE_FORMATS)
        changed[ANSWERS_HASH] = hash_of_files([path])
    method = METHOD in changed
    if method or (kind is not None and not control):
        # Not the protocol trains it: one record of a pass without epochs to choose from.
        protocol = protocol.model_copy(update={"max_epochs": 1, "teacher": ""})
    asked = [] if control or method else asked_teachers(changed, protocol)
    if control or method:
        teachers = []
    elif teachers is None:
        teachers = [locate_teacher(each) for each in asked]
    protocol = protocol.for_model(taught=bool(asked) and kind is None)
    return RunConfig.parse(
        {
            "model": name,
            "model_overrides": changed,
            "data": data.plain(),
            "data_hash": file_hash(data),
            "protocol": (control_protocol(name) if control else protocol).plain(),
            "seed": 0 if control else seed,
            "precision": "fp32" if control and kind != WORDS_AND_ENCODER else precision,
            "teachers": [teacher.plain() for teacher in teachers],
        },
        source="run",
    )
