"""From a finished run to a folder that other tools read: weights, tokenizer, cleaning, labels, card, and a check."""

from __future__ import annotations

import copy
import datetime
import shutil
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerFast

from recurra.core.environment import code_record
from recurra.core.errors import ConfigurationError, StorageError
from recurra.core.files import atomic_folder, write_text
from recurra.core.progress import Reporter
from recurra.core.record import RECORD_NAME, DecisionRecord, LabelRunRecord, OneLabelRecord
from recurra.core.sealed import FileEntry, describe_file, sealed_model
from recurra.data.cleaning import CLEANINGS, recorded_cleaning
from recurra.data.corpora import recorded_split
from recurra.data.encoding import encode_windows
from recurra.data.vocabulary import with_fewer_pieces
from recurra.data.windows import first_windows, recorded_reading
from recurra.deployment.decision import LabelDecision, read_decision
from recurra.deployment.engines import load_engine
from recurra.deployment.engines.computation import DEFAULT_BATCH_SIZE, LinearEngine
from recurra.deployment.engines.trained import JoinedEngine, TransformerEngine
from recurra.deployment.export.check import (
    CheckRows,
    Logits,
    calibrate_exits,
    choose_exit_rows,
    choose_rows,
    compare_logits,
    judge_check,
)
from recurra.deployment.export.formats import find_format, find_precision
from recurra.deployment.export.manifest import (
    RUN_RECORD_NAME,
    ExportManifest,
    ExportOptions,
    StoredModel,
    VocabularyRecord,
    is_export,
    read_run,
    write_manifest,
)
from recurra.models.exits.thresholds import check_agreement
from recurra.models.modeling import keep_rows

CARD_NAME = "README.md"
TEMPLATES = Path(__file__).parent / "templates"
MIB = 2**20


def render_card(record: LabelRunRecord, manifest: ExportManifest, *, num_recurrences: int) -> str:
    """Returns the card as Markdown."""
    linear, decision = manifest.kind == "linear", manifest.decision
    bounds = (decision.abstain_below if isinstance(decision, OneLabelRecord) else None) or []
    thresholds = decision.thresholds if isinstance(decision, DecisionRecord) else []
    names = manifest.label_names
    page = (
        _environment()
        .get_template("README.md.j2")
        .render(
            **dict(manifest),
            record=record,
            manifest=manifest,
            linear=linear,
            # A linear model stands beside the encoder.
            joined=record.model.kind == "linear" and not linear,
            weights_name=", ".join(
                name for name in find_format(manifest.format).weight_files if name in manifest.files
            ),
            thresholds=dict(zip(names, thresholds, strict=False)),
            bounds={name: bound for name, bound in zip(names, bounds, strict=False) if bound},
            num_recurrences=num_recurrences,
            train=record.data.splits["train"],
            text_column=str((record.config.get("data") or {}).get("text_column", "")),
        )
    )
    # A lone surrogate from a broken label cannot be written as UTF-8.
    return page.encode("utf-8", "replace").decode("utf-8")


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=False,  # Markdown: every text that came from outside goes through `md` or `code`
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        md=_markdown,
        code=lambda value: str(value).replace("`", "'"),
        count=lambda value: f"{value:,}",
        decimal=lambda value, digits: f"{value:.{digits}f}",
        significant=lambda value: f"{value:.2g}",
        shortest=lambda value: f"{value:.6g}",
        amount=_amount,
        mib=lambda value: f"{value / MIB:.2f}",
    )
    return environment


def _markdown(value: Any) -> str:
    """A text on one line in which no Markdown or HTML takes effect."""
    plain = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for character in "\\`*_[]|":
        plain = plain.replace(character, f"\\{character}")
    return plain


def _amount(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


DEFAULT_AGREEMENT = 0.99


def trim(engine: TransformerEngine, texts: Sequence[str], most: int | None) -> TransformerEngine:
    """Returns a copy of the engine with a smaller vocabulary and table.

    Pieces that ``texts``, the training rows, use stay, the most frequent first, at most ``most`` or all of them.

    Raises:
        ConfigurationError: If the tokenizer's pieces depend on each other, or ``most`` leaves no room for words.
    """
    if not getattr(engine.model, "narrows_vocabulary", True):
        raise ConfigurationError("the layers are transformers' own, which count on every piece: leave the vocabulary")
    ids, _, _ = encode_windows(texts, engine.tokenizer, engine.max_length, engine.windows)
    tokenizer, rows = with_fewer_pieces(engine.tokenizer, ids, most)
    model = copy.deepcopy(engine.model)
    keep_rows(model, rows, tokenizer.pad_token_id)
    return TransformerEngine(
        model.eval(), tokenizer, precision="fp32", max_length=engine.max_length, windows=engine.windows
    )


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
        rows: Rows to check on, for a caller that has them; none chooses as the options say.

    Raises:
        CheckpointError: If the run is not finished, damaged, or not ours.
        ConfigurationError: For an unknown format or precision, a model that the format does not store, an agreement
            without exits, or for a linear model what it cannot have.
        UnavailableError: If a package that the format needs is not installed.
        StorageError: If the output is there already, lies inside the run, or cannot be written.
        AuditError: If the export does not compute what the run's model computes; nothing is written then.
    """
    run, output, options = Path(run), Path(output), options or ExportOptions()
    reporter = reporter or Reporter(quiet=True)
    precision, export_format = find_precision(options.format, options.precision), find_format(options.format)
    export_format.check_packages()
    record = read_run(run)
    check_place(run, output, overwrite=options.overwrite)
    engine: Any = load_engine(sealed_model(run), precision="fp32", **recorded_reading(record.config))
    if isinstance(engine, LinearEngine):
        _check_linear(run, options)
    rows = rows or choose_rows(record, options)
    if rows.note:
        reporter.say(f"not checked on the run's own rows: {rows.note}")
    decision = read_decision(record.data.label_names, record.decision)
    if options.abstain_below is not None:
        decision = decision.abstaining_below(options.abstain_below)
    agreement = None
    if isinstance(engine, TransformerEngine):
        export_format.check_model(engine.model.config)
        agreement = _wanted_agreement(engine, decision, options, reporter)
    reporter.say(f"{record.run_id}: the run's model on {len(rows.texts):,} rows of {rows.source}")
    reference = engine.logits(rows.texts, DEFAULT_BATCH_SIZE)
    vocabulary = None
    if options.vocabulary is not None and isinstance(engine, TransformerEngine):
        engine, reference, vocabulary = _trimmed(engine, record, rows, reference, options)
        reporter.say(vocabulary.describe())
    with atomic_folder(output, replace=options.overwrite) as folder:
        reporter.say(f"writing {options.format} in {options.precision}")
        if isinstance(engine, TransformerEngine):
            save_tokenizer(engine.tokenizer, engine.max_length, folder)
            export_format.write(engine, record, precision.name, folder)
            reading: dict[str, Any] = {
                name: getattr(engine, name) for name in ("max_length", "pad_token_id", "windows")
            }
        else:
            export_format.write_linear(engine.model, folder)
            reading = {**recorded_reading(record.config), "windows": 1, "pad_token_id": 0, "kind": "linear"}
        stored = StoredModel(format=options.format, precision=options.precision, **reading)
        # Read as a user's program will.
        exported = stored.open(folder)
        check = compare_logits(
            rows,
            reference,
            exported.logits(rows.texts, DEFAULT_BATCH_SIZE),
            by=exported.computation,
            reference_by=engine.computation,
            decision=decision,
        )
        if note := judge_check(check, precision):
            reporter.say(note)
        exits = None
        if agreement is not None:
            exit_rows = exit_rows or choose_exit_rows(record, options, rows)
            exits = calibrate_exits(exported, exit_rows, agreement, DEFAULT_BATCH_SIZE, confidence=options.confidence)
            reporter.say(exits.describe())
        shutil.copyfile(run / RECORD_NAME, folder / RUN_RECORD_NAME)
        cleaning = recorded_cleaning(record.config)
        manifest = ExportManifest(
            **dict(stored),
            run_id=record.run_id,
            record_hash=record.content_hash or describe_file(run / RECORD_NAME).sha256,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            code=code_record(),
            label_names=record.data.label_names,
            cleaning=cleaning,
            cleaning_steps=list(CLEANINGS[cleaning]),
            files=_files(folder),
            check=check,
            exits=exits,
            decision=decision.record(),
            vocabulary=vocabulary,
        )
        card = render_card(record, manifest, num_recurrences=engine.depth.num_recurrences if engine.depth else 0)
        write_text(folder / CARD_NAME, card)
        return write_manifest(folder, manifest.model_copy(update={"files": _files(folder)}))


def check_place(run: Path, output: Path, *, overwrite: bool) -> None:
    """Refuses an output that would touch the run or something that is no export."""
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


def _check_linear(run: Path, options: ExportOptions) -> None:
    for name, value, reason in (
        ("--precision", None if options.precision == "fp32" else options.precision, "its weights are stored in fp32"),
        ("--vocabulary", options.vocabulary, "it has no token table to make smaller"),
        ("--agreement", options.agreement, "it has no exits"),
        ("--confidence", options.confidence, "it has no exits"),
    ):
        if value is not None:
            raise ConfigurationError(f"'{run}' is a linear model: {reason}; leave {name} {value} out")


def _trimmed(
    engine: TransformerEngine, record: LabelRunRecord, rows: CheckRows, reference: Logits, options: ExportOptions
) -> tuple[TransformerEngine, Logits, VocabularyRecord]:
    """The run's model with a smaller vocabulary, its logits of the rows, and what that costs."""
    smaller = trim(engine, recorded_split(record, "train", options.data_root).texts, options.vocabulary or None)
    if isinstance(engine, JoinedEngine):
        smaller = JoinedEngine.of(smaller, engine.words)
    logits = smaller.logits(rows.texts, DEFAULT_BATCH_SIZE)
    decision = read_decision(record.data.label_names, record.decision)
    before, after = (_tokens_read(rows.texts, model) for model in (engine, smaller))
    cost = VocabularyRecord(
        pieces=len(smaller.tokenizer),
        of=len(engine.tokenizer),
        rows_changed=float((before != after).mean()),
        label_agreement=decision.agreement(logits, decision.of_logits(reference)),
        reference_accuracy=None if rows.labels is None else float(decision.same(reference, rows.labels).mean()),
        accuracy=None if rows.labels is None else float(decision.same(logits, rows.labels).mean()),
    )
    return smaller, logits, cost


def _tokens_read(texts: Sequence[str], engine: TransformerEngine) -> npt.NDArray[np.int64]:
    """Tokens that an engine reads of each text, ``(texts,)``."""
    _, offsets, counts = encode_windows(texts, engine.tokenizer, engine.max_length, engine.windows)
    lengths: npt.NDArray[np.int64] = np.diff(offsets)
    return lengths if counts is None else np.add.reduceat(lengths, first_windows(counts))


def _wanted_agreement(
    engine: TransformerEngine, decision: LabelDecision, options: ExportOptions, reporter: Reporter
) -> float | None:
    """The agreement to calibrate the exits to; none if the model has no exits, or its texts take all recurrences."""
    reason = "" if engine.windows == 1 else "read a text in one window"
    if not decision.exclusive:
        reason = "give each text one label"
    if reason and engine.depth.exits:
        reporter.say(f"exit rules are for models that {reason}: texts will take all recurrences")
    wanted = DEFAULT_AGREEMENT if options.agreement is None else options.agreement
    check_agreement(wanted, options.confidence)
    for option, value in {"--agreement": options.agreement, "--confidence": options.confidence}.items():
        if value is not None and reason:
            raise ConfigurationError(f"{option} {value:g} is for models that {reason}; leave {option} out")
        if value is not None and not engine.depth.exits:
            raise ConfigurationError(
                f"{option} {value:g} needs a model with exits, and this one was trained without; "
                f"leave {option} out, or train one with exits, for example model.exits=[1]"
            )
    return None if reason or not engine.depth.exits else wanted


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, max_length: int, folder: Path) -> None:
    """Writes ``tokenizer.json`` and ``tokenizer_config.json``, with the length after which texts are cut."""
    tokenizer.model_max_length = max_length
    tokenizer.save_pretrained(folder)


def _files(folder: Path) -> dict[str, FileEntry]:
    return {path.name: describe_file(path) for path in sorted(folder.iterdir())}
