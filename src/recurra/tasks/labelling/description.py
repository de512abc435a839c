"""Describes a data set of labelled texts before anything is trained on it."""

from __future__ import annotations

from typing import Any

from recurra.core.errors import UnavailableError
from recurra.core.record import DataRecord
from recurra.data.configuration import DataConfig
from recurra.data.encoding import EncodedSplit, encode_split
from recurra.data.tokenization import describe_tokenizer, load_tokenizer
from recurra.evaluation.audits.long_texts import LIMITS, cut_texts
from recurra.tasks.study_data import StudyData
from recurra.tasks.tables import CommandResult, Table

# With more than twice as many labels, so many of the commonest and so many of the rarest are shown.
_LABELS_AT_EITHER_END = 10


def describe_rows(config: DataConfig, data: StudyData) -> CommandResult:
    """Splits, labels, lengths, fingerprints and left-out rows; and how many rows each limit of tokens cuts."""
    dataset = data.rows(config)
    record = dataset.record()
    rows = [
        {
            "Split": name,
            "Rows": f"{split.rows:,}",
            "Mean words": f"{split.words.mean:.1f}",
            "Median": f"{split.words.median:.0f}",
            "90 %": f"{split.words.p90:.0f}",
            "Most": f"{split.words.max}",
            "Fingerprint": split.fingerprint,
        }
        for name, split in record.splits.items()
    ]
    title = f"{record.name}, protocol {record.protocol}, fingerprint {record.fingerprint}"
    dropped = [f"left out, {reason}: {count:,}" for reason, count in record.dropped.items() if count]
    try:
        lengths = data.token_lengths(config, config.tokenizer, ["train"])[0]["train"]
        cut = {str(limit): cut_texts(lengths, limit).rows for limit in LIMITS}
    except UnavailableError:
        # The tokenizer cannot be had.
        cut = {}
    shares = ", ".join(f"{share:.1%} at {limit}" for limit, share in cut.items())
    limits = [f"training rows that a limit of tokens cuts ({config.tokenizer} tokenizer): {shares}"] if cut else []
    plain = {**record.model_dump(mode="json"), "cut": cut}
    lines = [*limits, *record.notes, *dropped]
    return CommandResult(plain, [Table("splits", title, rows), _label_counts(record), lines])


def describe_tokens(config: DataConfig, data: StudyData) -> CommandResult:
    """Tokenises all splits; ``cut`` counts the rows at the limit of tokens, or with as many windows as allowed."""
    dataset, cache_dir = data.rows(config), data.machine.cache_dir
    tokenizer = load_tokenizer(config, dataset, data.machine.data_root)
    encoded = {
        name: encode_split(split, tokenizer, config.max_length, cache_dir, windows=config.windows)
        for name, split in dataset.splits.items()
    }
    splits = [{"name": name, **_token_counts(split, config)} for name, split in encoded.items()]
    tokens = describe_tokenizer(tokenizer)
    pieces = f"{tokens['kind']} of {tokens['vocab_size']:,} pieces"
    title = f"{dataset.name}: {pieces}, at most {config.max_length} tokens"
    if config.windows > 1:
        title += f" in each of at most {config.windows} windows"
    rows = [
        {
            "Split": split["name"],
            "Rows": f"{split['rows']:,}",
            "Tokens": f"{split['tokens']:,}",
            "Mean": f"{split['mean_tokens']:.1f}",
            "Longest": f"{split['longest_tokens']}",
            "Rows at the limit": f"{split['cut']:,}",
        }
        for split in splits
    ]
    plain = {
        "name": dataset.name,
        "protocol": dataset.protocol,
        "fingerprint": dataset.fingerprint,
        "tokenizer": tokens,
        "max_length": config.max_length,
        "windows": config.windows,
        "splits": splits,
    }
    return CommandResult(plain, [Table("splits", title, rows)])


def _label_counts(record: DataRecord) -> Table:
    """Rows of each label in every split, the commonest first; of very many both ends, the others in one row."""
    train = record.splits["train"]
    ordered = sorted(record.label_names, key=lambda label: -train.label_counts[label])
    groups = [(label, [label]) for label in ordered]
    others = ordered[_LABELS_AT_EITHER_END:-_LABELS_AT_EITHER_END]
    if len(others) > 1:
        groups[_LABELS_AT_EITHER_END:-_LABELS_AT_EITHER_END] = [(f"… {len(others)} others (--json has all)", others)]
    rows = []
    for heading, labels in groups:
        counts = {name: sum(split.label_counts[label] for label in labels) for name, split in record.splits.items()}
        cells = {name: f"{count:,}" for name, count in counts.items()}
        rows.append({"Label": heading, **cells, "Of train": f"{counts['train'] / train.rows:.1%}"})
    return Table("labels", "", rows)


def _token_counts(encoded: EncodedSplit, data: DataConfig) -> dict[str, Any]:
    lengths, windows = encoded.lengths, encoded.windows_of_texts
    at_limit = windows >= data.windows if data.windows > 1 else lengths >= data.max_length
    return {
        "rows": len(windows),
        "windows": len(encoded),
        "tokens": int(lengths.sum()),
        "mean_tokens": float(lengths.sum() / len(windows)),
        "longest_tokens": int(lengths.max()),
        "cut": int(at_limit.sum()),
    }
