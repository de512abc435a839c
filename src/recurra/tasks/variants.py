"""Models written out in a study file: a preset or an encoder with some keys changed, and whom they learn from."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from recurra.core.configuration import HashedSettings, Settings, content_hash
from recurra.core.errors import ConfigurationError, did_you_mean, unknown
from recurra.core.record import LabelRunRecord, holds_any_record, read_any_record
from recurra.deployment.export.manifest import is_export, read_manifest
from recurra.models.folder import CONFIG_NAME, WEIGHTS_NAME
from recurra.models.names import MODEL_KEYS
from recurra.tasks.profile import PEERS, START_KEYS, TEACHABLE, controls, presets
from recurra.training.protocols import LANGUAGE_PROTOCOLS, PROTOCOLS


class ModelVariant(Settings):
    """A preset with some keys changed: ``{name: recurrent-R3, preset: recurrent, num_recurrences: 3}``.

    Or a pretrained encoder: ``{name: looped, encoder: minilm, plan: "0 (3 4)x2 5"}``. It is the same run as a model
    file of that name with the same keys. Every other key is one of `recurra.models.configuration.RecurraConfig`; the
    values are checked where the model is configured, before any run.

    Attributes:
        name: Name in tables and run folders; not that of a preset.
        preset: What to start from; none if it starts from an encoder. With a teacher also one of
            `recurra.tasks.profile.TEACHABLE`.
        encoder: The pretrained encoder to start from, as `recurra.models.adaptation.source.find_encoder` takes it.
        plan: Which of its layers are shared, as `recurra.models.adaptation.plan.SharingPlan` reads it.
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

    @field_validator("name")
    @classmethod
    def _own_name(cls, value: str) -> str:
        if value in (*controls(), *presets(), *PEERS):
            raise ValueError("that is a preset's name; give the variant a name of its own")
        return value

    @field_validator("preset")
    @classmethod
    def _known_preset(cls, value: str | None) -> str | None:
        if value is not None and value not in (*presets(), *TEACHABLE):
            raise ValueError(unknown("preset", value, [*presets(), *TEACHABLE]))
        return value

    @model_validator(mode="after")
    def _one_start(self) -> ModelVariant:
        if (self.preset is None) == (self.encoder is None):
            raise ValueError("give either preset or encoder: what the model starts from")
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

    Attributes:
        name: Name in tables; not that of a protocol.
        base: The protocol to start from, by name or file.
        models: The models of the study that are trained under it; none are all.
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
        name: Where it is shown: the name of a model of the same study, or that of the folder.
        run_id: If it is a run of the same study, which lies beside the run; empty if it is a folder.
        folder: Else where it lies: a run, an export, or a Hugging Face classifier.
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
