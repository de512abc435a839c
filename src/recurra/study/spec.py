"""What to run: one run, and a study of many, as typed, frozen configurations."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from recurra.core.configuration import Settings, content_hash, override, read_yaml
from recurra.core.errors import ConfigurationError, unknown
from recurra.data.configuration import DataConfig
from recurra.data.language.configuration import LanguageDataConfig
from recurra.data.language.corpora import is_language_corpus
from recurra.models.names import LANGUAGE_PRESET_NAMES, PRESET_NAMES
from recurra.study.export_record import ExportRequest
from recurra.study.questions import PRECISIONS, Contrast, PublishedReference
from recurra.study.tasks import AnyDataConfig, check_task, leaks, models_language
from recurra.study.variants import LINEAR, ModelEntry, ModelVariant
from recurra.training.protocols import ProtocolConfig, load_protocol

Precision = Literal["fp32", "bf16", "fp16"]
Seed = Annotated[int, Field(ge=0, lt=2**31)]

# The linear control has no training protocol of ours; it stands in the tables of all of them.
LINEAR_PROTOCOL = ProtocolConfig(name=LINEAR, learning_rate=1.0, batch_size=32, max_epochs=1)


def _parse_data(value: Any) -> AnyDataConfig:
    """Which of the two a mapping is, its corpus says; left to pydantic, messages would name both."""
    if isinstance(value, DataConfig | LanguageDataConfig):
        return value
    name = value.get("name") if isinstance(value, Mapping) else None
    if isinstance(name, str) and is_language_corpus(name):
        return LanguageDataConfig.parse(value, source=f"data '{name}'")
    return DataConfig.model_validate(value)


DataEntry = Annotated[AnyDataConfig, BeforeValidator(_parse_data)]


class RunConfig(Settings):
    """One run: a model, data, a protocol and a seed.

    Attributes:
        model: Name in tables: a preset, ``linear``, or the name of a model file.
        model_overrides: Keys of the model configuration on top of the preset; ``preset`` names another base.
        data: What to train and test on: labelled rows, or running text for a language model.
        data_hash: Hash of the user's files, so that a changed file is a changed run.
        protocol: How to train.
        seed: Seed of weights, batch order and dropout. The data have their own ``split_seed``.
        precision: Precision of the matrix products.
    """

    model: str
    model_overrides: dict[str, Any] = Field(default_factory=dict)
    data: DataEntry
    data_hash: str | None = None
    protocol: ProtocolConfig
    seed: Seed = 0
    precision: Precision = "fp32"

    def model_post_init(self, _: object) -> None:
        """Checks that model and data belong together."""
        check_task(self.model, self.model_overrides, self.data)

    @property
    def models_language(self) -> bool:
        """Whether it trains a language model."""
        return models_language(self.model, self.model_overrides)

    @property
    def label(self) -> str:
        """The model's name where it is shown; that of a language model that reads the future says so."""
        unsaid = "leaks" not in self.model and leaks(self.model, self.model_overrides)
        return f"{self.model}-leaks" if unsaid else self.model

    @property
    def labelled_data(self) -> DataConfig:
        """The data of a classifier."""
        assert isinstance(self.data, DataConfig)
        return self.data

    @property
    def text_data(self) -> LanguageDataConfig:
        """The data of a language model."""
        assert isinstance(self.data, LanguageDataConfig)
        return self.data

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
        if self.model != LINEAR:
            parts += [self.protocol.name, f"s{self.seed}"]
        slug = "-".join("".join(c if c.isalnum() or c in "._" else "-" for c in part) for part in parts)
        return f"{slug[:100]}-{self.config_hash[:8]}"


class StudySpec(Settings):
    """A study: every combination of data, models, protocols and seeds, of classifiers or of language models.

    Attributes:
        name: Short name; the report's file name and heading.
        title: Heading of the report; the name if empty.
        data: Corpora or files; all labelled or all running text.
        models: Presets, ``linear``, model files, or variants written out; see `recurra.study.variants.ModelVariant`.
        protocols: Training protocols by name or file.
        protocol_overrides: ``key=value`` on top of each protocol.
        seeds: Seeds; the linear control is deterministic and runs once.
        precision: Precision of the matrix products, or several.
        contrasts: Pairs of models to hold against each other; see `recurra.study.questions.Contrast`.
        published: Published tables to stand beside ours; none given means table 6 beside the whole of SST-2.
        exports: What every Transformer is exported as once it is trained; no part of a run's identity.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)
    title: str = ""
    data: list[DataEntry] = Field(min_length=1)
    models: list[ModelEntry] = Field(min_length=1)
    protocols: list[str] = Field(default=["paper"], min_length=1)
    protocol_overrides: list[str] = Field(default_factory=list)
    seeds: list[Seed] = Field(default=[0, 1, 2], min_length=1)
    precision: str | list[str] = "fp32"
    contrasts: list[Contrast] = Field(default_factory=list)
    published: list[PublishedReference] | None = None
    exports: list[ExportRequest] = Field(default_factory=list)

    @field_validator("precision")
    @classmethod
    def _known_precisions(cls, value: str | list[str]) -> str | list[str]:
        values = [value] if isinstance(value, str) else value
        if not values:
            raise ValueError(f"name at least one; allowed: {', '.join(PRECISIONS)}")
        for item in values:
            if item not in PRECISIONS:
                raise ValueError(unknown("precision", item, PRECISIONS))
        return value

    @field_validator("models", "protocols", "seeds", "precision", "contrasts", "exports")
    @classmethod
    def _no_doubles(cls, values: Any) -> Any:
        names = [_entry_name(value) for value in values] if isinstance(values, list) else []
        doubles = sorted({name for name in names if names.count(name) > 1})
        if doubles:
            raise ValueError(f"{', '.join(doubles)} stands there twice; name each once")
        return values

    @field_validator("data")
    @classmethod
    def _no_data_twice(cls, values: list[AnyDataConfig]) -> list[AnyDataConfig]:
        if len({type(value) for value in values}) > 1:
            raise ValueError("labelled data and running text are two studies; write a file for each")
        for index, value in enumerate(values):
            if value in values[:index]:
                raise ValueError(f"'{value.name}' stands there twice with the same settings; name each once")
        return values

    @model_validator(mode="after")
    def _of_one_task(self) -> Self:
        for key in ("contrasts", "exports", "published") if self.models_language else ():
            if getattr(self, key):
                raise ValueError(f"'{key}' is for classifiers, and this study trains language models; leave it out")
        return self

    @model_validator(mode="after")
    def _contrasts_are_in_the_study(self) -> Self:
        for contrast in self.contrasts:
            contrast.check([model_name(model) for model in self.models], self.precisions)
        return self

    @property
    def models_language(self) -> bool:
        """Whether it trains language models."""
        return isinstance(self.data[0], LanguageDataConfig)

    @property
    def precisions(self) -> list[str]:
        """Every precision, one or several."""
        return [self.precision] if isinstance(self.precision, str) else list(self.precision)


def _entry_name(value: Any) -> str:
    if isinstance(value, Contrast | ExportRequest):
        return value.name
    return model_name(value) if isinstance(value, (str, ModelVariant)) else str(value)


def model_name(model: str | ModelVariant) -> str:
    """Name in tables: of a variant its own, of a file that of the file without its ending."""
    if isinstance(model, ModelVariant):
        return model.name
    return Path(model).stem if Path(model).suffix in {".yaml", ".yml"} else model


def resolve_model(name: str | ModelVariant) -> tuple[str, dict[str, Any]]:
    """Returns the name and the overrides of a model given as preset, ``linear``, YAML file or variant.

    Raises:
        ConfigurationError: If there is no such preset or file.
    """
    if isinstance(name, ModelVariant):
        return name.name, name.overrides
    presets = PRESET_NAMES + LANGUAGE_PRESET_NAMES
    if name == LINEAR or name in presets:
        return name, {}
    if Path(name).suffix in {".yaml", ".yml"}:
        return Path(name).stem, read_yaml(name)
    raise ConfigurationError(unknown("model", name, [LINEAR, *presets, "a .yaml file"]))


def file_hash(data: AnyDataConfig) -> str | None:
    """Hash of the files that a user's data come from, or none for a corpus by name."""
    paths = [Path(name) for name in (data.name, data.validation, data.test) if name]
    if not paths[0].is_file():
        return None
    digest = hashlib.sha256()
    for path in paths:
        if path.is_file():
            with path.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


def make_run(
    model: str | ModelVariant,
    data: AnyDataConfig,
    protocol: ProtocolConfig,
    *,
    seed: int,
    precision: str,
    overrides: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Builds a run's configuration from what a person names."""
    name, file_overrides = resolve_model(model)
    linear = name == LINEAR
    return RunConfig.parse(
        {
            "model": name,
            "model_overrides": {**file_overrides, **(overrides or {})},
            "data": data.plain(),
            "data_hash": file_hash(data),
            "protocol": (LINEAR_PROTOCOL if linear else protocol).plain(),
            "seed": 0 if linear else seed,
            "precision": "fp32" if linear else precision,
        },
        source="run",
    )


def expand(spec: StudySpec) -> list[RunConfig]:
    """Returns all runs of a study, cheap controls first, then seed by seed so that early results cover every model."""
    protocols = [load_protocol(name, spec.protocol_overrides, language=spec.models_language) for name in spec.protocols]
    models = sorted(spec.models, key=lambda name: name != LINEAR)
    # Checked and, for files, hashed once; the seeds were checked with the study.
    checked = [
        make_run(model, data, protocol, seed=spec.seeds[0], precision=precision)
        for data in spec.data
        for protocol in protocols
        for precision in spec.precisions
        for model in models
    ]
    runs: dict[str, RunConfig] = {}
    for seed in spec.seeds:
        for first in checked:
            run = first if first.model == LINEAR or seed == first.seed else first.model_copy(update={"seed": seed})
            runs.setdefault(run.config_hash, run)
    return list(runs.values())


def load_study(path: Path | str, assignments: Iterable[str] = ()) -> StudySpec:
    """Reads a study file."""
    return StudySpec.parse(override(read_yaml(path), assignments), source=f"'{path}'")
