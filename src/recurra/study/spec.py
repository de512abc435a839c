"""A study of many runs, as a typed, frozen configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from recurra.core.configuration import Settings, names_in, override, read_yaml
from recurra.core.errors import ConfigurationError, unknown
from recurra.data.configuration import RunData
from recurra.deployment.export_record import ExportRequest
from recurra.tasks.base import (
    TEACHER,
    DataEntry,
    RunConfig,
    Seed,
    Task,
    TeacherConfig,
    controls,
    task_of_data,
)
from recurra.tasks.questions import (
    PRECISIONS,
    Contrast,
    Costs,
    Limits,
    PublishedReference,
    Questions,
    with_costs,
)
from recurra.tasks.runs import (
    Entry,
    locate_teacher,
    make_run,
    model_name,
    own_name,
    read_variant,
    requested_teachers,
    resolve_model,
)
from recurra.training.protocols import LANGUAGE_PROTOCOLS, PROTOCOLS, ProtocolConfig


def _read_model(value: Any) -> Any:
    return read_variant(value) if isinstance(value, dict) else value


def _read_protocol(value: Any) -> Any:
    """A protocol with some keys changed, perhaps for some models: ``{name: distil, base: finetune, teacher: minilm}``.

    Every other key is one of `recurra.training.protocols.ProtocolConfig`, which the plan checks.
    """
    if not isinstance(value, dict):
        return value
    name = own_name(value, "protocol", {*PROTOCOLS, *LANGUAGE_PROTOCOLS})
    if not isinstance(value.get("base"), str):
        raise ConfigurationError(f"protocol '{name}': give 'base', the protocol whose keys it changes")
    models = value.get("models")
    if models is not None and not (isinstance(models, list) and all(isinstance(model, str) for model in models)):
        raise ConfigurationError(f"protocol '{name}': 'models' is {models!r}; give a list of names")
    return value


def _as_mapping(pairs: Any) -> Any:
    """A list of ``key=value`` as a mapping."""
    return override({}, map(str, pairs)) if isinstance(pairs, list) else pairs


class StudySpec(Settings):
    """A study: every combination of data, models, protocols and seeds. The keys: docs/reference/study-files.md."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)
    title: str = ""
    data: list[DataEntry] = Field(min_length=1)
    models: list[Annotated[str | dict[str, Any], BeforeValidator(_read_model)]] = Field(min_length=1)
    protocols: list[Annotated[str | dict[str, Any], BeforeValidator(_read_protocol)]] = Field(
        default=["paper"], min_length=1
    )
    protocol_overrides: dict[str, Any] = Field(default_factory=dict)
    seeds: list[Seed] = Field(default=[0, 1, 2], min_length=1)
    precision: str | list[str] = "fp32"
    contrasts: list[Contrast] = Field(default_factory=list)
    published: list[PublishedReference] | None = None
    exports: list[ExportRequest] = Field(default_factory=list)
    max_mib: float | None = Field(default=None, gt=0)
    max_ms: float | None = Field(default=None, gt=0)
    measure: str | None = None
    costs: Costs | None = None
    prices: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _costs(cls, values: Any) -> Any:
        return with_costs(values)

    @field_validator("protocol_overrides", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        return _as_mapping(value)

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
        names = Counter(map(_entry_name, values)) if isinstance(values, list) else {}
        doubles = sorted(name for name, count in names.items() if count > 1)
        if doubles:
            raise ValueError(f"{', '.join(doubles)} is given twice; name each once")
        return values

    @field_validator("prices")
    @classmethod
    def _prices_of_models(cls, prices: dict[str, float], info: ValidationInfo) -> dict[str, float]:
        known = [model_name(model) for model in info.data.get("models", ())]
        for name in prices if known else ():
            if name not in known:
                raise ValueError(unknown("model", name, known))
        return prices

    @field_validator("data")
    @classmethod
    def _no_data_twice(cls, values: list[RunData]) -> list[RunData]:
        kinds = list(dict.fromkeys(task_of_data(value).kind_of_data for value in values))
        if len(kinds) > 1:
            raise ValueError(f"{' and '.join(kinds)} are two studies; write a file for each")
        for index, value in enumerate(values):
            if value in values[:index]:
                raise ValueError(f"'{value.name}' is given twice with the same settings; name each once")
        return values

    @model_validator(mode="after")
    def _parts_belong_together(self) -> Self:
        unused = [] if self.task.exports else ["exports"]
        unused += [] if self.task.published_tables else ["published"]
        for key in unused:
            if getattr(self, key):
                raise ValueError(f"'{key}' has no meaning for {self.task.kind_of_data}; leave it out")
        for reference in self.published or ():
            reference.check(self.task.published_tables)
        known = [model_name(model) for model in self.models]
        for protocol, models in self.models_of_protocols.items():
            for name in set(models).difference(known):
                raise ValueError(f"protocol '{protocol}': {unknown('model', name, known)}")
        for contrast in self.contrasts:
            contrast.check(known, self.precisions)
        return self

    @property
    def models_of_protocols(self) -> dict[str, list[str]]:
        """Models of each protocol that is restricted to some models, by the protocol's name."""
        entries = [entry for entry in self.protocols if isinstance(entry, dict)]
        return {entry["name"]: entry["models"] for entry in entries if entry.get("models")}

    @property
    def task(self) -> Task:
        """Task that its models are trained for."""
        return task_of_data(self.data[0])

    @property
    def questions(self) -> Questions:
        """Questions that it asks of its records."""
        limits = Limits(max_mib=self.max_mib, max_ms=self.max_ms)
        return Questions(self.contrasts, self.published, limits, self.measure, self.costs, prices=self.prices)

    @property
    def precisions(self) -> list[str]:
        """Every precision, one or several."""
        return [self.precision] if isinstance(self.precision, str) else list(self.precision)


def _entry_name(value: Any) -> str:
    if isinstance(value, Contrast | ExportRequest):
        return value.name
    return model_name(value) if isinstance(value, str | dict) else str(value)


def expand(spec: StudySpec) -> list[RunConfig]:
    """Returns all runs of a study, cheap controls first, then seed by seed so that early results cover every model."""
    protocols = [_load_protocol(spec, entry) for entry in spec.protocols]
    limited = spec.models_of_protocols
    known = {model_name(model): model for model in spec.models}
    names = sorted(known, key=lambda name: name not in controls())
    # Each run is checked, and its files hashed, once; seeds and folds were checked with the study.
    taught_runs = [
        (*_taught_run(spec, known, name, entry, protocol, protocols=protocols, precision=precision), entry)
        for entry in spec.data
        for protocol in protocols
        for precision in spec.precisions
        for name in names
        # A teacher of a protocol does not learn from itself.
        if name not in names_in(protocol.teacher) and (protocol.name not in limited or name in limited[protocol.name])
    ]
    runs = [
        _of_seed(run, fold, seed, teachers)
        for seed in spec.seeds
        for run, teachers, entry in taught_runs
        for fold in entry.every_fold
    ]
    if not runs:
        raise ConfigurationError("no model can be trained: each teaches in its protocols; add a protocol or a model")
    return list({run.config_hash: run for run in runs}.values())


def _taught_run(
    spec: StudySpec,
    known: Mapping[str, Entry],
    name: str,
    data: RunData,
    protocol: ProtocolConfig,
    *,
    protocols: Sequence[ProtocolConfig],
    precision: str,
) -> tuple[RunConfig, list[RunConfig]]:
    """A run of the first seed with its teachers from folders, and the runs of the study that it learns from."""
    model = known[name]
    teacher_names = requested_teachers(*resolve_model(model), protocol)
    folders = [locate_teacher(teacher) for teacher in teacher_names if teacher not in known]
    settings: dict[str, Any] = {"seed": spec.seeds[0], "precision": precision}
    run = make_run(model, data, protocol, teachers=folders, **settings)
    teacher_protocol = next((candidate for candidate in (protocol, *protocols) if not candidate.teacher), None)
    teachers = []
    for teacher in teacher_names:
        if teacher not in known:
            continue
        if teacher_protocol is None:
            raise ConfigurationError(
                f"protocol '{protocol.name}': its teacher '{teacher}' is a model of the study, but no protocol trains "
                "it without a teacher; add one, for example finetune"
            )
        teachers.append(make_run(known[teacher], data, teacher_protocol, teachers=[], **settings))
        if teachers[-1].model_overrides.get(TEACHER):
            raise ConfigurationError(f"model '{run.model}': its teacher '{teacher}' learns from another model itself")
    return run, teachers


def _of_seed(run: RunConfig, data: RunData, seed: int, teachers: Sequence[RunConfig] = ()) -> RunConfig:
    """The run of another fold and, if it is repeated, of another seed; it learns from teachers of the same."""
    repeated = run.is_repeated or bool(teachers)
    changes: dict[str, Any] = {"seed": seed} if repeated and seed != run.seed else {}
    if (own_data := data.dealt_for(seed) if repeated else data) != run.data:
        changes["data"] = own_data
    if teachers:
        run_ids = [(teacher.model, _of_seed(teacher, data, seed).run_id) for teacher in teachers]
        changes["teachers"] = [*(TeacherConfig(name=name, run_id=run_id) for name, run_id in run_ids), *run.teachers]
    return run.model_copy(update=changes) if changes else run


def _load_protocol(spec: StudySpec, entry: str | dict[str, Any]) -> ProtocolConfig:
    if isinstance(entry, str):
        return spec.task.load_protocol(entry, spec.protocol_overrides)
    overrides = {key: value for key, value in entry.items() if key not in ("base", "models")}
    return spec.task.load_protocol(entry["base"], {**overrides, **spec.protocol_overrides})


def load_study(path: Path | str, assignments: Iterable[str] = ()) -> StudySpec:
    """Reads a study file."""
    values = read_yaml(path)
    # An assignment may change a single key of it.
    values["protocol_overrides"] = _as_mapping(values.get("protocol_overrides", {}))
    return StudySpec.parse(override(values, assignments), source=f"'{path}'")
