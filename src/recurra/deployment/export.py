"""From a finished run to a folder that other tools read: weights, tokenizer, cleaning, labels, card, and a check."""

from __future__ import annotations

import datetime
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from recurra.core.environment import code_record
from recurra.core.errors import CheckpointError, ConfigurationError, StorageError
from recurra.core.files import write_text
from recurra.core.folders import atomic_folder
from recurra.core.progress import Reporter
from recurra.core.record import RECORD_NAME, RunRecord, read_record
from recurra.data.cleaning import CLEANING_NAME, CLEANING_STEPS
from recurra.deployment.calibrating import agreement_asked, calibrate
from recurra.deployment.calibration import CalibrationRecord
from recurra.deployment.card import CARD_NAME, render_card
from recurra.deployment.check import CheckRows, choose_exit_rows, choose_rows, compare_logits, judge_check
from recurra.deployment.classifier import DEFAULT_BATCH_SIZE
from recurra.deployment.depth import DeepEngine
from recurra.deployment.engine import LoadedEngine, load_engine
from recurra.deployment.engines import TransformerEngine
from recurra.deployment.formats import check_format, check_packages
from recurra.deployment.manifest import (
    RUN_RECORD_NAME,
    CheckRecord,
    ExportManifest,
    FileEntry,
    describe_file,
    is_export,
    write_manifest,
)
from recurra.deployment.onnx_engine import MODEL_NAME as ONNX_NAME
from recurra.deployment.onnx_engine import OnnxEngine
from recurra.deployment.weights import write_safetensors, write_tokenizer
from recurra.models.loading import WEIGHTS_NAME

MODEL = "model"


@dataclass(frozen=True)
class ExportOptions:
    """What to make of a run.

    Attributes:
        format: A key of `recurra.deployment.formats.FORMATS`.
        precision: Precision of the stored weights; one of those that the format has.
        overwrite: Whether an export that lies at the output already is replaced.
        rows_file: File of texts to check on; none takes the run's validation split, or the demo corpus.
        text_column: Column of that file.
        data_root: Local copies of public data.
        agreement: Of a model with exits: share of rows that keep their label when texts stop early; none means 0.99.
    """

    format: str = "safetensors"
    precision: str = "fp32"
    overwrite: bool = False
    rows_file: Path | None = None
    text_column: str = "text"
    data_root: Path | None = None
    agreement: float | None = None


def export_run(
    run: Path | str,
    output: Path | str,
    options: ExportOptions | None = None,
    *,
    rows: CheckRows | None = None,
    exit_rows: CheckRows | None = None,
    reporter: Reporter | None = None,
) -> ExportManifest:
    """Exports a run, checks the export against the run's model, and puts it in its place when it is whole.

    Args:
        run: A finished run folder.
        output: Folder to write; a sibling with a name of its own holds it until it is whole.
        options: What to make.
        rows: Rows to check on, for a caller that has them; none chooses as the options say.
        exit_rows: Rows to choose the exit rule of a model with exits on, likewise.
        reporter: For progress.

    Raises:
        CheckpointError: If the run is not finished, damaged, or not ours.
        ConfigurationError: For an unknown format or precision, a linear model, or an agreement without exits.
        UnavailableError: If a package that the format needs is not installed.
        StorageError: If the output is there already, lies inside the run, or cannot be written.
        AuditError: If the export does not compute what the run's model computes; nothing is written then.
    """
    run, output, options = Path(run), Path(output), options or ExportOptions()
    reporter = reporter or Reporter(quiet=True)
    check_format(options.format, options.precision)
    check_packages(options.format)
    record = _read_run(run)
    check_place(run, output, overwrite=options.overwrite)
    if rows is None:
        rows = choose_rows(record, file=options.rows_file, text_column=options.text_column, data_root=options.data_root)
    if rows.note:
        reporter.say(f"not checked on the run's own rows: {rows.note}")
    reporter.say(f"{record.run_id}: the run's model on {len(rows.texts):,} rows of {rows.source}")
    source = _Source(run, record, TransformerEngine.load(run / MODEL, precision="fp32", max_length=_max_length(record)))
    asked = agreement_asked(source.engine.model.config, options.agreement)
    reference = source.engine.logits(rows.texts, DEFAULT_BATCH_SIZE)
    with atomic_folder(output, replace=options.overwrite) as folder:
        reporter.say(f"writing {options.format} in {options.precision}")
        weights_name = _write_model(source, options, folder)
        engine = _load(source, options, folder)
        logits = engine.logits(rows.texts, DEFAULT_BATCH_SIZE)
        check = compare_logits(rows, reference, logits, by=engine.computation, reference_by=source.engine.computation)
        judge_check(check, options.precision)
        exits = None
        if asked is not None:
            assert isinstance(engine, DeepEngine)
            exit_rows = exit_rows or choose_exit_rows(
                record, file=options.rows_file, text_column=options.text_column, data_root=options.data_root
            )
            exits = calibrate(engine, exit_rows, asked, DEFAULT_BATCH_SIZE)
            reporter.say(exits.describe())
        return _describe(source, options, folder, weights_name, check=check, exits=exits)


@dataclass(frozen=True)
class _Source:
    """What is exported: the run's folder, its record, and its model in FP32."""

    run: Path
    record: RunRecord
    engine: TransformerEngine


def _read_run(run: Path) -> RunRecord:
    if is_export(run):
        raise CheckpointError(f"'{run}' is an export; give the run that it was made from")
    if not (run / RECORD_NAME).exists() and not (run / MODEL).is_dir():
        raise CheckpointError(f"'{run}' is not a run folder; give a folder made by 'recurra train'")
    record = read_record(run)
    if record.model.kind == "linear":
        raise ConfigurationError(
            f"'{run}' is a linear model: it has no layers to store in another precision; "
            "use the run folder itself, or export a Transformer"
        )
    return record


def check_place(run: Path, output: Path, *, overwrite: bool) -> None:
    """Refuses an output that would touch the run or something that is no export.

    Raises:
        StorageError: What is in the way.
    """
    source, target = run.resolve(), output.resolve()
    if target == source or source in target.parents or target in source.parents:
        where = "is the run itself" if target == source else "and the run lie one inside the other"
        raise StorageError(f"'{output}' {where} ('{run}'); choose an --output beside it")
    if not output.exists():
        return
    if not overwrite:
        raise StorageError(f"'{output}' is there already; choose another --output, or replace it with --overwrite")
    if not output.is_dir():
        raise StorageError(f"'{output}' is a file, where a folder is needed; choose another --output")
    if any(output.iterdir()) and not is_export(output):
        raise StorageError(f"'{output}' is not an export of ours and is not replaced; choose another --output")


def _max_length(record: RunRecord) -> int:
    return int(record.config["data"]["max_length"])


def _write_model(source: _Source, options: ExportOptions, folder: Path) -> str:
    """Writes weights, configuration and tokenizer; returns the name of the file with the weights."""
    write_tokenizer(source.engine.tokenizer, source.engine.max_length, folder)
    if options.format == "onnx":
        from recurra.deployment.onnx_export import write_onnx

        metadata = {"run_id": source.record.run_id, "labels": json.dumps(source.record.data.label_names)}
        write_onnx(source.engine.model, options.precision, source.engine.max_length, folder, metadata)
        return ONNX_NAME
    write_safetensors(source.run / MODEL, options.precision, folder)
    return WEIGHTS_NAME


def _load(source: _Source, options: ExportOptions, folder: Path) -> LoadedEngine:
    """Reads what was written as a user's program will."""
    if options.format == "onnx":
        return OnnxEngine.load(
            folder,
            precision=options.precision,
            max_length=source.engine.max_length,
            pad_token_id=source.engine.pad_token_id,
        )
    return load_engine(folder, kind="transformer", max_length=source.engine.max_length)


def _describe(
    source: _Source,
    options: ExportOptions,
    folder: Path,
    weights_name: str,
    *,
    check: CheckRecord,
    exits: CalibrationRecord | None,
) -> ExportManifest:
    """Adds the run's record, the card, and last the manifest."""
    record_file = source.run / RECORD_NAME
    shutil.copyfile(record_file, folder / RUN_RECORD_NAME)
    record = source.record
    manifest = ExportManifest(
        run_id=record.run_id,
        record_hash=record.content_hash or describe_file(record_file).sha256,
        format=cast("Literal['safetensors', 'onnx']", options.format),
        precision=cast("Literal['fp32', 'bf16', 'fp16', 'int8']", options.precision),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        code=code_record(),
        label_names=record.data.label_names,
        max_length=source.engine.max_length,
        pad_token_id=source.engine.pad_token_id,
        cleaning=CLEANING_NAME,
        cleaning_steps=list(CLEANING_STEPS),
        files=_files(folder),
        check=check,
        exits=exits,
    )
    card = render_card(record, manifest, weights_name, num_recurrences=source.engine.depth.num_recurrences)
    write_text(folder / CARD_NAME, card)
    return write_manifest(folder, manifest.model_copy(update={"files": _files(folder)}))


def _files(folder: Path) -> dict[str, FileEntry]:
    return {path.name: describe_file(path) for path in sorted(folder.iterdir())}
