"""Exports a finished run to a folder that other tools read: weights, tokenizer, cleaning, labels, card.

Before an export is moved into place, it is compared with the run's model on real rows.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import itertools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jinja2
import numpy as np
import numpy.typing as npt
from scipy.special import bdtrc
from transformers import PreTrainedTokenizerFast

from recurra.core.environment import code_record
from recurra.core.errors import AuditError, ConfigurationError, DataError, RecurraError, StorageError
from recurra.core.files import atomic_folder, refuse_present, write_text
from recurra.core.packed import RUNS_NAME
from recurra.core.progress import Reporter
from recurra.core.record import RECORD_NAME, DecisionRecord, LabelRunRecord, OneLabelRecord, read_record
from recurra.core.sealed import FileEntry, describe_file, sealed_model
from recurra.core.terminal import amount
from recurra.data.cleaning import CLEANINGS, clean_texts, recorded_cleaning
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset, recorded_split
from recurra.data.dataset import TextSplit
from recurra.data.encoding import encode_windows
from recurra.data.tables import stream_texts
from recurra.data.tokenization import with_fewer_pieces
from recurra.data.windows import first_windows, recorded_reading
from recurra.deployment.decision import LabelDecision, read_decision
from recurra.deployment.engines import load_engine
from recurra.deployment.engines.computation import DEFAULT_BATCH_SIZE, Computation, Engine, LinearEngine
from recurra.deployment.engines.trained import JoinedEngine, TransformerEngine
from recurra.deployment.export.formats import ExportFormat, StoredPrecision, find_format, find_precision
from recurra.deployment.export.manifest import (
    MANIFEST_NAME,
    RUN_RECORD_NAME,
    CalibrationRecord,
    CheckRecord,
    ExportManifest,
    ExportOptions,
    StoredModel,
    VocabularyRecord,
    read_run,
    write_manifest,
)
from recurra.models.exits.thresholds import calibrate_classifier, check_agreement, check_enough_rows, keeps
from recurra.models.modeling import keep_rows

CARD_NAME = "README.md"


def _markdown(value: Any) -> str:
    """A text on one line, with Markdown and HTML escaped."""
    plain = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for character in "\\`*_[]|":
        plain = plain.replace(character, f"\\{character}")
    return plain


_CARDS = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=False,  # Markdown: every text that came from outside goes through `md` or `code`
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_CARDS.filters.update(
    md=_markdown,
    code=lambda value: str(value).replace("`", "'"),
    count=lambda value: f"{value:,}",
    decimal=lambda value, digits: f"{value:.{digits}f}",
    significant=lambda value: f"{value:.2g}",
    shortest=lambda value: f"{value:.6g}",
    amount=amount,
    mib=lambda value: f"{value / 2**20:.2f}",
)


def render_card(record: LabelRunRecord, manifest: ExportManifest, *, num_recurrences: int) -> str:
    """Returns the card as Markdown."""
    linear, decision, names = manifest.kind == "linear", manifest.decision, manifest.label_names
    bounds = (decision.abstain_below if isinstance(decision, OneLabelRecord) else None) or []
    thresholds = decision.thresholds if isinstance(decision, DecisionRecord) else []
    weight_files = find_format(manifest.format).weight_files
    page = _CARDS.get_template("README.md.j2").render(
        **dict(manifest),
        record=record,
        manifest=manifest,
        linear=linear,
        # The encoder is joined with a linear model.
        joined=record.model.kind == "linear" and not linear,
        weights_name=", ".join(name for name in weight_files if name in manifest.files),
        thresholds=dict(zip(names, thresholds, strict=False)),
        bounds={name: bound for name, bound in zip(names, bounds, strict=False) if bound},
        num_recurrences=num_recurrences,
        train=record.data.splits["train"],
        text_column=str((record.config.get("data") or {}).get("text_column", "")),
    )
    # A lone surrogate from a broken label cannot be written as UTF-8.
    return page.encode("utf-8", "replace").decode("utf-8")


MOST_ROWS = 2000
# Most texts of a file that are held to choose these from; an even number.
_MOST_HELD = 50 * MOST_ROWS

Logits = npt.NDArray[np.float32]
Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class CheckRows:
    """Rows to check an export on; with labels ``(rows,)`` or ``(rows, labels)`` if known and of the model's task.

    The note says why the run's own rows were not used, if they should have been.
    """

    source: str
    texts: Sequence[str]
    labels: npt.NDArray[np.int64] | None = None
    note: str = ""


def choose_rows(
    record: LabelRunRecord, options: ExportOptions, splits: Mapping[str, TextSplit] | None = None
) -> CheckRows:
    """Returns rows to check on: those of a file, else the run's own validation split, else the demo's sentences.

    Labels in a file are ignored.
    """
    if (file := options.rows_file) is not None:
        chunks = stream_texts(file, options.text_column, MOST_ROWS, encoding=options.encoding)
        texts, step = list[str](), 1
        for number, text in enumerate(itertools.chain.from_iterable(chunks)):
            if number % step == 0:
                texts.append(text)
            if len(texts) == _MOST_HELD:
                texts, step = texts[::2], 2 * step
        if not texts:
            raise DataError(f"'{file}' has no rows to check the export on; give a file with texts")
        return CheckRows(f"the file {file.name}", clean_texts(_spread(texts), recorded_cleaning(record.config)))
    root = options.data_root
    if root is not None and not root.is_dir():
        raise DataError(f"the data root '{root}' is not a folder; give --data-root DIR (or RECURRA_DATA_ROOT)")
    try:
        return _own_rows(record, _check_split(record), root, splits)
    except RecurraError as error:
        demo = load_dataset(DataConfig(name="demo")).splits["test"]
        source = "the demo's sentences, because the run's own data are not available"
        return CheckRows(source, demo.texts[:MOST_ROWS], note=str(error))


def _own_rows(
    record: LabelRunRecord, name: str, root: Path | None, splits: Mapping[str, TextSplit] | None
) -> CheckRows:
    """Rows of one of the run's splits; raises an error of ours if they are not available."""
    split = recorded_split(record, name, root) if splits is None else splits[name]
    chosen = split.select(_spread(range(len(split))))
    return CheckRows(f"the {split.name} split of {record.data.name}", chosen.texts, chosen.labels)


def _check_split(record: LabelRunRecord) -> str:
    """The split of a run's data that exports are checked on: validation, or what chose its checkpoint."""
    return "validation" if "validation" in record.data.splits else record.data.selection_split


def _choose_exit_rows(
    record: LabelRunRecord, options: ExportOptions, checked: CheckRows, splits: Mapping[str, TextSplit] | None
) -> CheckRows:
    """Returns rows to choose an exit rule on: those of a file, else of the split that chose the run's weights.

    A reported split is not used, because it would no longer be unseen. Without the run's own data there are no rows,
    and a note says why.
    """
    if options.rows_file is not None or (not checked.note and _check_split(record) == record.data.selection_split):
        return checked
    try:
        return _own_rows(record, record.data.selection_split, options.data_root, splits)
    except RecurraError as error:
        return CheckRows("no rows", [], note=str(error))


def _spread(items: Sequence[Item]) -> list[Item]:
    """At most `MOST_ROWS` of some items, evenly spread, because a file may be sorted by label."""
    indices = np.linspace(0, len(items) - 1, min(len(items), MOST_ROWS)).round().astype(int)
    return [items[index] for index in indices.tolist()]


def compare_logits(
    rows: CheckRows,
    reference: Logits,
    logits: Logits,
    *,
    by: Computation,
    reference_by: Computation,
    decision: LabelDecision,
) -> CheckRecord:
    """Compares an export's logits ``(rows, labels)`` with those of the run's model; all must be finite."""
    for values, owner, advice in (
        (
            reference,
            "run's model itself",
            "its weights are damaged, or too large to compute with: copy or train it again",
        ),
        (logits, "export", "export in fp32 or bf16, which have a larger range"),
    ):
        if bad := int((~np.isfinite(values).all(axis=1)).sum()):
            raise AuditError(
                f"the {owner} gives logits that are not finite for {bad} of {len(values)} rows; nothing was written; "
                f"{advice}"
            )
    labelled: dict[str, Any] = {}
    if rows.labels is not None:
        before, after = decision.same(reference, rows.labels), decision.same(logits, rows.labels)
        labelled = {"reference_accuracy": float(before.mean()), "accuracy": float(after.mean())}
        labelled |= {"only_reference": int((before & ~after).sum()), "only_export": int((after & ~before).sum())}
    return CheckRecord(
        source=rows.source,
        rows=len(rows.texts),
        label_agreement=decision.agreement(logits, decision.of_logits(reference)),
        largest_logit_difference=float(np.abs(logits.astype(np.float64) - reference).max()),
        largest_logit=float(np.abs(reference).max()),
        reference=reference_by,
        computation=by,
        **labelled,
    )


# An int8 export fails if as many differing labels have at most this probability under the least agreement.
_CHANCE = 0.05


def judge_check(check: CheckRecord, precision: StoredPrecision, decisions: int = 1) -> str:
    """Refuses an export that differs too much from the run's model; returns a note for a doubtful one, else nothing.

    ``decisions`` is the number of labels decided for each row, more than one if each label is decided separately.

    Raises:
        AuditError: If labels or logits differ too much, or too much accuracy is lost: more than is allowed, and more
            than chance among so few rows explains.
    """
    decided = check.rows * decisions
    measured = (
        f"{check.label_agreement:.2%} of {decided:,} labels agree, "
        f"largest logit difference {check.largest_logit_difference:.2g}, on {check.source}"
    )
    name, tolerance, most = precision.name, precision.logit_tolerance, precision.most_lost_points
    note = ""
    if check.label_agreement < precision.least_agreement:
        complaint = f"the {name} export disagrees with the run's model: {measured}"
        requirement = f"at least {precision.least_agreement:.1%} of labels must agree"
        differing = round((1 - check.label_agreement) * decided)
        # Rounding to int8 changes labels of rows between two labels, so only there chance is considered.
        if most is None or bdtrc(differing - 1, decided, 1 - precision.least_agreement) <= _CHANCE:
            raise AuditError(f"{complaint}; {requirement}; nothing was written; export in a wider precision")
        note = f"{complaint}; {requirement}, but with so few rows this may be chance; check on more rows"
    if tolerance is not None and check.largest_logit_difference > tolerance * max(1.0, check.largest_logit):
        raise AuditError(
            f"the {name} export does not compute what the run's model computes: {measured}; nothing was written"
        )
    lost, interval = check.lost_points, check.lost_points_interval
    if most is None or lost is None or interval is None or lost <= most:
        return note
    measured = f"the {name} export {check.describe_loss()} on {check.source}"
    if interval[0] > 0:
        raise AuditError(f"{measured}; at most {most} points are allowed; nothing was written; export in fp32")
    return f"{measured}: more than {most} points, but with so few rows this may be chance; check on more labelled rows"


# Most thresholds to try. When rows leave a batch, int8 scales of the remaining rows change; if that changes more labels
# than allowed, a more careful threshold is tried.
_TRIES = 6


def calibrate_exits(
    engine: Engine, rows: CheckRows, wanted: float, batch_size: int, *, confidence: float | None = None
) -> CalibrationRecord:
    """Chooses the threshold with most early exits at which enough rows keep the label of all recurrences.

    The recorded figures of the rule are measured with early exits of the exported model. With a confidence, the
    agreement is promised for other rows too (`recurra.models.exits.thresholds`).

    Raises:
        ConfigurationError: If there are too few rows for the promise.
    """
    assert engine.depth is not None
    exits = list(engine.depth.exits)
    uncalibrated = CalibrationRecord(
        exits=exits, asked=wanted, source=rows.source, rows=len(rows.texts), confidence=confidence
    )
    if not len(rows.texts):
        return uncalibrated
    if confidence is not None:
        check_enough_rows(len(rows.texts), wanted, confidence)
    logits = engine.logits_by_recurrence(rows.texts, batch_size)
    full_labels = logits[engine.depth.num_recurrences].argmax(axis=1)
    target = wanted
    # A promise only holds for the first try on these rows.
    for _ in range(_TRIES if confidence is None else 1):
        rule = calibrate_classifier(logits, target, confidence=confidence).rule
        if rule is None:
            return uncalibrated
        exit_logits, exited_after = engine.leave_early(rows.texts, batch_size, rule)
        labels = exit_logits.argmax(axis=1)
        agreement = float((labels == full_labels).mean())
        if agreement >= wanted and (confidence is None or keeps(agreement, len(labels), wanted, confidence)):
            numbers, counts = np.unique(exited_after, return_counts=True)
            return uncalibrated.model_copy(
                update={
                    "rule": rule.plain(),
                    "agreement": agreement,
                    "taken": dict(zip(numbers.tolist(), counts.tolist(), strict=True)),
                    "accuracy": None if rows.labels is None else float((labels == rows.labels).mean()),
                }
            )
        target = (1 + target) / 2
    return uncalibrated


DEFAULT_AGREEMENT = 0.99


def trim(engine: TransformerEngine, texts: Sequence[str], most: int | None) -> TransformerEngine:
    """Returns a copy of the engine with a smaller vocabulary and table.

    Pieces that occur in ``texts``, the training rows, are kept: all, or the ``most`` most frequent ones.

    Raises:
        ConfigurationError: If the tokenizer's pieces depend on each other, or ``most`` leaves no room for words.
    """
    if not getattr(engine.model, "narrows_vocabulary", True):
        raise ConfigurationError("its layers are transformers' own, which need every piece: leave the vocabulary")
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
    splits: Mapping[str, TextSplit] | None = None,
    reporter: Reporter | None = None,
) -> ExportManifest:
    """Exports a run, checks the export against the run's model, and moves it into place when it is complete.

    A caller that has read the splits of the run's data hands them on.

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
    _check_kind(run, record, export_format)
    refuse_output_in_run(run, output, overwrite=options.overwrite)
    engine: Any = load_engine(sealed_model(run), precision="fp32", **recorded_reading(record.config))
    if isinstance(engine, LinearEngine):
        _check_linear(run, options)
    elif isinstance(engine, TransformerEngine):
        export_format.check_model(engine.model.config)
    rows = choose_rows(record, options, splits)
    if rows.note:
        reporter.say(f"not checked on the run's own rows: {rows.note}")
    decision = _decision(record, options)
    agreement = _wanted_agreement(engine, decision, options, reporter)
    reporter.say(f"{record.run_id}: the run's model on {len(rows.texts):,} rows of {rows.source}")
    reference = engine.logits(rows.texts, DEFAULT_BATCH_SIZE)
    model_logits, vocabulary = reference, None
    if options.vocabulary is not None and isinstance(engine, TransformerEngine):
        engine, model_logits, vocabulary = _trimmed(engine, record, rows, reference, options)
        reporter.say(vocabulary.describe())
    with atomic_folder(output, replace=options.overwrite, mark=MANIFEST_NAME) as folder:
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
        logits = exported.logits(rows.texts, DEFAULT_BATCH_SIZE)
        # The cost of a requested smaller vocabulary is accepted: only storing is judged, but the record has both.
        stored_check, check = (
            compare_logits(
                rows, expected, logits, by=exported.computation, reference_by=engine.computation, decision=decision
            )
            for expected in (model_logits, reference)
        )
        for note in (
            judge_check(stored_check, precision, 1 if decision.exclusive else len(decision.label_names)),
            "" if vocabulary is None else _describe_excess(check, precision),
        ):
            if note:
                reporter.say(note)
        exits = None
        if agreement is not None:
            exit_rows = _choose_exit_rows(record, options, rows, splits)
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


def refuse_output_in_run(run: Path, output: Path, *, overwrite: bool) -> None:
    """Refuses an output that would overwrite the run or anything that is not an export."""
    source, target = run.resolve(), output.resolve()
    if target == source or source in target.parents or target in source.parents:
        problem = "is the run itself" if target == source else "and the run lie one inside the other"
        raise StorageError(f"'{output}' {problem} ('{run}'); choose an --output beside it")
    refuse_present(output, replace=overwrite, mark=MANIFEST_NAME)


def _decision(record: LabelRunRecord, options: ExportOptions) -> LabelDecision:
    decision = read_decision(record.data.label_names, record.decision)
    return decision if options.abstain_below is None else decision.abstaining_below(options.abstain_below)


def _check_kind(run: Path, record: LabelRunRecord, export_format: ExportFormat) -> None:
    """Refuses a linear model in a format without them; names a Transformer's run on the same data as an example."""
    if record.model.kind != "linear" or export_format.takes_linear:
        return
    runs, example = run.parent if run.parent.name == RUNS_NAME else run.parent / RUNS_NAME, ""
    for file in sorted(runs.glob(f"*/{RECORD_NAME}")):
        with contextlib.suppress(RecurraError):
            other = read_record(file.parent)
            if other.model.kind == "transformer" and other.data.name == record.data.name:
                example = f", for example {file.parent}"
                break
    raise ConfigurationError(
        f"'{record.model.preset}' cannot be exported as {export_format.name}; take --format onnx, or export a "
        f"Transformer{example}"
    )


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
    """The run's model with a smaller vocabulary, its logits of the rows, and the cost of the change."""
    trimmed_engine = trim(engine, recorded_split(record, "train", options.data_root).texts, options.vocabulary or None)
    if isinstance(engine, JoinedEngine):
        trimmed_engine = JoinedEngine.of(trimmed_engine, engine.words)
    logits = trimmed_engine.logits(rows.texts, DEFAULT_BATCH_SIZE)
    decision = _decision(record, options)
    tokens_before, tokens_after = (_tokens_read(rows.texts, model) for model in (engine, trimmed_engine))
    cost = VocabularyRecord(
        pieces=len(trimmed_engine.tokenizer),
        of=len(engine.tokenizer),
        rows_changed=float((tokens_before != tokens_after).mean()),
        label_agreement=decision.agreement(logits, decision.of_logits(reference)),
        reference_accuracy=None if rows.labels is None else float(decision.same(reference, rows.labels).mean()),
        accuracy=None if rows.labels is None else float(decision.same(logits, rows.labels).mean()),
    )
    return trimmed_engine, logits, cost


def _describe_excess(check: CheckRecord, precision: StoredPrecision) -> str:
    """The loss of an export with a smaller vocabulary, if it is above the limits for the run's vocabulary."""
    lost, most_lost = check.lost_points or 0.0, precision.most_lost_points
    if check.label_agreement >= precision.least_agreement and (most_lost is None or lost <= most_lost):
        return ""
    loss_text = f" and {loss}" if (loss := check.describe_loss()) else ""
    points_text = "" if most_lost is None else f" and lose at most {most_lost} points"
    return (
        f"with the smaller vocabulary the export keeps {check.label_agreement:.2%} of the run's labels{loss_text}; "
        f"with the whole one {precision.name} is to keep {precision.least_agreement:.1%}{points_text}; keep more pieces"
    )


def _tokens_read(texts: Sequence[str], engine: TransformerEngine) -> npt.NDArray[np.int64]:
    """Number of tokens that an engine reads of each text, ``(texts,)``."""
    _, offsets, counts = encode_windows(texts, engine.tokenizer, engine.max_length, engine.windows)
    lengths: npt.NDArray[np.int64] = np.diff(offsets)
    return lengths if counts is None else np.add.reduceat(lengths, first_windows(counts))


def _wanted_agreement(
    engine: Engine, decision: LabelDecision, options: ExportOptions, reporter: Reporter
) -> float | None:
    """The agreement to calibrate exits to; none if the model has no exits, or cannot use them."""
    if not isinstance(engine, TransformerEngine):
        return None
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
