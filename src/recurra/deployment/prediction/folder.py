"""Predicting the files of a folder, here or on a Ray cluster; files that already have predictions are skipped."""

from __future__ import annotations

import functools
import platform
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from recurra.core.configuration import content_hash
from recurra.core.errors import ConfigurationError, DataError, RecurraError, RunError, StorageError, unknown
from recurra.core.files import read_json, write_json
from recurra.core.progress import Reporter
from recurra.core.terminal import one_line
from recurra.data.tables import STREAM_FORMATS, check_pyarrow, format_of, stream_rows
from recurra.deployment.classifier import Classifier
from recurra.deployment.export.manifest import is_export, needs_torch, read_manifest, read_run, refuse_precision
from recurra.deployment.prediction.files import PredictionCounts, open_writer, write_stream

SIDECAR_NAME = "predictions.json"
PART_FORMATS = ("parquet", "jsonl", "csv", "tsv")


@dataclass(frozen=True)
class FolderJob:
    """Predicts the files of the folder ``source`` by a run or an export into files of the folder ``output``."""

    model: Path
    source: Path
    output: Path
    text_column: str = "text"
    precision: str | None = None
    batch_size: int = 64
    part_format: str = "parquet"
    encoding: str | None = None
    escape_formulas: bool = False

    def output_of(self, name: str) -> Path:
        """The file of predictions for an input file, given by its path relative to the input folder."""
        return self.output / f"{name}.{self.part_format}"

    def is_done(self, name: str) -> bool:
        """Whether the predictions exist and are not older than the input file."""
        try:
            return self.output_of(name).stat().st_mtime_ns >= (self.source / name).stat().st_mtime_ns
        except OSError:
            return False

    def names(self) -> list[str]:
        """The input files, sorted, without names that begin with a dot or an underscore."""
        source, output = self.source.resolve(), self.output.resolve()
        if output.is_relative_to(source) or source.is_relative_to(output):
            raise StorageError(
                f"'{self.output}' and the input '{self.source}' lie one inside the other: predictions would be taken "
                "for inputs; choose another --output"
            )
        names = []
        for path in source.rglob("*"):
            below = path.relative_to(source)
            if format_of(path) in STREAM_FORMATS and path.is_file():
                names += [] if any(part.startswith((".", "_")) for part in below.parts) else [below.as_posix()]
        if not names:
            raise DataError(f"'{self.source}' holds no file to predict; allowed: {', '.join(STREAM_FORMATS)}")
        for name in names:
            if name.encode("utf-8", "replace").decode("utf-8") != name:
                raise DataError(f"{name!r} in '{self.source}' has a name that is not UTF-8; rename it")
        return sorted(names)

    def check(self, *, begin: bool = False) -> None:
        """Refuses an output folder with predictions of another job; ``begin`` marks an empty one as this job's."""
        if self.part_format not in PART_FORMATS:
            raise ConfigurationError(unknown("format of parts", self.part_format, PART_FORMATS))
        if self.part_format == "parquet":
            check_pyarrow("or give --part-format jsonl, csv or tsv")
        run_id, model_hash = _identify(self.model)
        refuse_precision(self.model, self.precision)
        settings: dict[str, Any] = {"model_hash": model_hash, "model": run_id, "precision": self.precision}
        settings |= {"text_column": self.text_column, "part_format": self.part_format}
        # Folders of earlier versions lack this key. The encoding may differ: files that failed in one may need another.
        settings["escape_formulas"] = True if self.escape_formulas else None
        path = self.output / SIDECAR_NAME
        if begin and not path.exists():
            if self.output.is_dir() and any(not entry.name.startswith(".") for entry in self.output.iterdir()):
                raise StorageError(f"'{self.output}' is not empty and has no {SIDECAR_NAME}; choose another --output")
            write_json(path, settings)
        try:
            stored = dict(read_json(path))
        except (OSError, ValueError, TypeError) as error:
            raise StorageError(f"'{path}' cannot be read; choose another --output") from error
        for key, value in settings.items():
            if (old_value := stored.get(key)) == value:
                continue
            if key in ("model_hash", "model"):
                raise ConfigurationError(
                    f"'{self.output}' holds predictions of another model (of the run {stored.get('model')!r}); choose "
                    "another --output"
                )
            old, new = ("given" if setting is True else setting or "left out" for setting in (old_value, value))
            raise ConfigurationError(
                f"'{self.output}' was begun with --{key.replace('_', '-')} {old}, not {new}; give the same, or "
                "choose another --output"
            )

    def load(self, threads: int = 0) -> Classifier:
        """Reads the model; 0 ``threads`` keep the process's setting."""
        if needs_torch(self.model):
            from recurra.models.quiet import quieten_libraries

            quieten_libraries()
        return Classifier.open(self.model, precision=self.precision, batch_size=self.batch_size, threads=threads)

    def predict(self, name: str, classifier: Classifier) -> FolderResult:
        """Predicts one file; returns the counts of its rows, or why it failed."""
        source = self.source / name
        try:
            stat_before = source.stat()
            output, escape = self.output_of(name), self.escape_formulas
            with open_writer(output, classifier.decision, escape_formulas=escape) as write:
                chunks = stream_rows(source, self.text_column, (), encoding=self.encoding)
                counts = write_stream(classifier, chunks, write)
                stat_after = source.stat()
                if (stat_after.st_size, stat_after.st_mtime_ns) != (stat_before.st_size, stat_before.st_mtime_ns):
                    raise DataError("the file was changed while it was read; try again when no program writes to it")
        except RecurraError as error:
            return FolderResult(failures=[one_line(f"{name}: {error}")])
        except OSError as error:
            return FolderResult(failures=[one_line(f"{name}: {error.strerror}; check the file and its name")])
        return FolderResult(**vars(counts), made=1)


@dataclass
class FolderResult(PredictionCounts):
    """The results for some files; rows are counted for the files predicted now, not for those skipped."""

    skipped: list[str] = field(default_factory=list)
    made: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: FolderResult) -> None:
        """Adds the result for a file, as `FolderJob.predict` returns it."""
        self.made += other.made
        self.failures += other.failures
        self.rows += other.rows
        self.empty += other.empty
        self.labels.update(other.labels)
        if other.abstained is not None:
            self.abstained = (self.abstained or 0) + other.abstained

    def plain(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        files = {"made": self.made, "skipped": len(self.skipped), "failures": self.failures}
        return {**files, **super().plain(), "labels": dict(sorted(self.labels.items()))}


Outcomes = Iterator[tuple[str, FolderResult]]
"""Names of files, each with the result of `FolderJob.predict`."""


def predict_folder(
    job: FolderJob, reporter: Reporter, compute: Callable[[FolderJob, list[str]], Outcomes] | None = None
) -> FolderResult:
    """Predicts the files of a folder into another folder, each into its own file.

    Several processes may work on one folder; a file that two predict at the same time is written twice, each time
    completely. Without ``compute``, such as `predict_on_ray`, files are predicted one after the other in this process.
    """
    names = job.names()
    if job.precision is not None and needs_torch(job.model):
        from recurra.models.inference import PRECISIONS, check_precision

        # Devices of a cluster check themselves whether they can compute in it.
        if compute is None or job.precision not in PRECISIONS:
            check_precision(job.precision)
    job.check(begin=True)
    pending = [name for name in names if not job.is_done(name)]
    result = FolderResult(skipped=sorted(set(names) - set(pending)))
    if result.skipped:
        shown_names = ", ".join(map(one_line, result.skipped[:5])) + (", ..." if len(result.skipped) > 5 else "")
        reporter.say(f"skipped {len(result.skipped):,} files that are predicted already: {shown_names}")
    with reporter.task("files", len(pending)) as task:
        for name, outcome in (compute or _here)(job, pending) if pending else ():
            result.add(outcome)
            task.advance(1, note=name)
    result.failures.sort()
    return result


def _here(job: FolderJob, names: list[str]) -> Outcomes:
    classifier = job.load()
    # Meanwhile another process may have started on the folder with another model.
    job.check()
    for name in names:
        yield name, job.predict(name, classifier)


@functools.lru_cache(maxsize=1)
def _loaded(job: FolderJob, threads: int) -> Classifier:
    """The model of a cluster process, cached because the process predicts many files."""
    job.check()
    return job.load(threads)


def predict_on_node(job: FolderJob, name: str, threads: int) -> FolderResult | str:
    """Predicts one file on a node of the cluster, or returns why the node cannot."""
    try:
        return job.predict(name, _loaded(job, threads))
    except RecurraError as error:
        requirement = "all nodes must see the same model, input and --output under the same path"
        return f"{requirement}, and {platform.node()} does not: {one_line(str(error))}"


def predict_on_ray(
    job: FolderJob,
    names: list[str],
    *,
    ray: ModuleType,
    reporter: Reporter,
    workers: int = 0,
    cpus: float = 1.0,
    retries: int = 3,
) -> Outcomes:
    """Predicts files on the cluster that Ray is connected to, one task each; a task whose worker died is repeated.

    Raises:
        StorageError: If a node sees other files than this machine.
        RunError: If Ray itself fails.
    """
    job = replace(job, model=job.model.resolve(), source=job.source.resolve(), output=job.output.resolve())
    most_running = workers or max(1, int(ray.cluster_resources().get("CPU", 0) / cpus))
    # Ray's own retries would wait for the worker that died.
    remote = ray.remote(predict_on_node).options(num_cpus=cpus, max_retries=0, name="recurra predict")
    waiting, running, losses = deque(names), dict[Any, str](), Counter[str]()
    while waiting or running:
        while waiting and len(running) < most_running:
            name = waiting.popleft()
            running[remote.remote(job, name, max(1, int(cpus)))] = name
        (reference,), _ = ray.wait(list(running))
        name = running.pop(reference)
        try:
            outcome = ray.get(reference)
        except (ray.exceptions.RayTaskError, ray.exceptions.RaySystemError) as error:
            raise RunError(
                f"the Ray cluster failed ({type(error).__name__}); finished files are kept: start the same command "
                "again when the cluster works; see Ray's logs"
            ) from error
        except ray.exceptions.RayError:
            losses[name] += 1
            if losses[name] > retries:
                outcome = FolderResult(failures=[f"{one_line(name)}: its worker died each time; see Ray's logs"])
            else:
                reporter.say(f"{one_line(name)} was lost because its worker died; it is started again")
                waiting.append(name)
                continue
        if isinstance(outcome, str):
            raise StorageError(outcome)
        yield name, outcome


def _identify(model: Path) -> tuple[str, str]:
    """The run of a model, and a hash that identifies the model."""
    if is_export(model):
        export = read_manifest(model)
        return export.run_id, export.content_hash
    record = read_run(model)
    return record.run_id, record.content_hash or content_hash(record.model_dump(mode="json"), length=64)
