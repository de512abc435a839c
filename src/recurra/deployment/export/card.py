"""The model card of an export, from the run's record and the export's own check."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from recurra.core.record import DecisionRecord, LabelRunRecord, OneLabelRecord
from recurra.deployment.export.formats import find_format
from recurra.deployment.export.manifest import MANIFEST_NAME, RUN_RECORD_NAME, ExportManifest

CARD_NAME = "README.md"
TEMPLATES = Path(__file__).parent / "templates"
MIB = 2**20
# Above this share of one label in training the classifier has learned to lean towards it.
_IMBALANCE = 0.6
_ONE_LABEL = "Every text gets one of the labels, also one that none of them fits, and one without words."
_ABSTAINS = "A text gets one label or none, also one that does not fit; one without words is judged like any other."
_UNCALIBRATED = "Probabilities are the softmax of the logits and were not calibrated."
_ANY_LABELS = (
    "Every text gets the labels whose probability is not below their threshold, or none; texts without words too."
)


def render_card(record: LabelRunRecord, manifest: ExportManifest, *, num_recurrences: int) -> str:
    """Returns the card as Markdown."""
    export_format = find_format(manifest.format)
    linear = manifest.kind == "linear"
    usage = export_format.linear_usage if linear else export_format.usage
    if _reads_words_too(record, manifest):
        usage = export_format.joined_usage
    page = (
        _environment()
        .get_template("README.md.j2")
        .render(
            record=record,
            record_hash=manifest.record_hash,
            record_name=RUN_RECORD_NAME,
            manifest_name=MANIFEST_NAME,
            code=manifest.code,
            format=manifest.format,
            precision=manifest.precision,
            max_length=manifest.max_length,
            windows=manifest.windows,
            usage=usage.format(
                cleaning="; ".join(manifest.cleaning_steps),
                max_length=manifest.max_length,
                pad_token_id=manifest.pad_token_id,
            ),
            weights_name=", ".join(name for name in export_format.weight_files if name in manifest.files),
            weights_bytes=manifest.weights_bytes,
            folder_bytes=manifest.size_bytes,
            check=manifest.check,
            exits=manifest.exits,
            thresholds=_thresholds(manifest),
            bounds=_bounds(manifest),
            linear=linear,
            num_recurrences=num_recurrences,
            train=record.data.splits["train"],
            limits=limits(record, manifest),
        )
    )
    # A lone surrogate from a broken label cannot be written as UTF-8.
    return page.encode("utf-8", "replace").decode("utf-8")


def _reads_words_too(record: LabelRunRecord, manifest: ExportManifest) -> bool:
    """Whether a linear model stands beside the encoder."""
    return record.model.kind == "linear" and manifest.kind != "linear"


def _thresholds(manifest: ExportManifest) -> dict[str, float]:
    decision = manifest.decision
    if not isinstance(decision, DecisionRecord):
        return {}
    return dict(zip(manifest.label_names, decision.thresholds, strict=True))


def _bounds(manifest: ExportManifest) -> dict[str, float]:
    decision = manifest.decision
    if not isinstance(decision, OneLabelRecord) or decision.abstain_below is None:
        return {}
    return {name: bound for name, bound in zip(manifest.label_names, decision.abstain_below, strict=True) if bound}


def _probabilities(manifest: ExportManifest) -> tuple[str, ...]:
    decision = manifest.decision
    if isinstance(decision, DecisionRecord):
        function = "logistic function of each label's logit"
        return _ANY_LABELS, _calibrated(function, decision.temperature) if decision.temperature != 1 else (
            f"Probabilities are the {function}; no temperature was found better."
        )
    gets = _ABSTAINS if _bounds(manifest) else _ONE_LABEL
    if not isinstance(decision, OneLabelRecord) or decision.temperature == 1:
        return gets, _UNCALIBRATED
    sentence = _calibrated("softmax of the logits", decision.temperature)
    return gets, f"{sentence} Exits judge the logits as they are."


def _calibrated(function: str, temperature: float) -> str:
    return (
        f"Probabilities are the {function} divided by the temperature {temperature:.6g}, which the split "
        "that chose the weights chose; a program of its own must divide too."
    )


def limits(record: LabelRunRecord, manifest: ExportManifest) -> list[str]:
    """What a user of the model has to know, one sentence each, as far as the record tells it."""
    notes = [
        f"The audit {audit.name} failed: {audit.summary}. Do not trust the figures above as they stand."
        for audit in record.failed_audits()
    ]
    notes += [f"The audit {audit.name} noted: {audit.summary}." for audit in record.noted_audits()]
    notes += [f"Not audited: {audit.name} ({audit.summary})." for audit in record.audits if audit.status == "skipped"]
    notes += _seen(record)
    train = record.data.splits["train"]
    label, rows = max(train.label_counts.items(), key=lambda item: item[1])
    if rows > _IMBALANCE * train.rows:
        notes.append(f"{rows / train.rows:.0%} of the training rows are {label}: the classifier leans towards it.")
    notes += [
        "Nothing but the splits above was tested: no other source, time, topic or language.",
        *_probabilities(manifest),
        f"{_reads(record, manifest)} case, HTML tags and URLs are removed before.",
    ]
    if manifest.vocabulary is not None:
        notes.append(
            f"Words that the training rows lack may be read in smaller pieces ({manifest.vocabulary.describe()})."
        )
    check = manifest.check
    pairs = "pairs of a row and a label" if isinstance(manifest.decision, DecisionRecord) else "rows"
    if check.label_agreement < 1:
        notes.append(
            f"Stored in {manifest.precision}, it gives another label than the run's model for "
            f"{1 - check.label_agreement:.2%} of the {pairs} that it was checked on."
        )
        if loss := check.describe_loss():
            notes.append(f"On these it {loss}.")
    if check.accuracy is None:
        notes.append("The export was checked on rows whose labels are not known or not the model's own.")
    return notes


def _reads(record: LabelRunRecord, manifest: ExportManifest) -> str:
    if manifest.kind == "linear":
        return "A text is read to its end, but as a bag of n-grams or word pieces, wherever they stand in it;"
    if _reads_words_too(record, manifest):
        return f"What stands beyond the first {manifest.max_length} tokens of a text is read as a bag of n-grams alone;"
    if manifest.windows > 1:
        return (
            f"Texts of more than {manifest.max_length} tokens are read in up to {manifest.windows} windows of so many, "
            "and the logits are averaged: a program of its own must do so too. What stands beyond is not read;"
        )
    return f"What stands beyond the first {manifest.max_length} tokens of a text is not read;"


def _seen(record: LabelRunRecord) -> list[str]:
    return [
        f"On {audit.name.rpartition('.')[2]}, rows contained in a training row make a difference: {audit.summary}."
        for audit in record.audits
        if audit.status == "measured" and audit.name.startswith("seen.") and audit.value
    ]


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
