"""``recurra data`` for running text: what it shows of a corpus or a text file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from recurra.cli.output import print_json, print_lines, print_table
from recurra.core.errors import ConfigurationError

if TYPE_CHECKING:
    from recurra.data.language.configuration import LanguageDataConfig


def refuse_labelled_options(
    name: str, protocol: str | None, text_column: str, label_column: str, group_column: str | None
) -> None:
    """Refuses options of labelled data, which would do nothing.

    Raises:
        ConfigurationError: If one was given.
    """
    given = {
        "--data-protocol": protocol is not None,
        "--text-column": text_column != "text",
        "--label-column": label_column != "label",
        "--group-column": group_column is not None,
    }
    for option, is_given in given.items():
        if is_given:
            raise ConfigurationError(
                f"'{option}' is for labelled data, and '{name}' is running text; leave it out (mode=lines or "
                "mode=packed says how samples are made)"
            )


def configure(name: str, assignments: list[str] | None, data_root: Path | None, **values: Any) -> LanguageDataConfig:
    """Builds the configuration from options and ``key=value``, and chooses the tokenizer if none is named.

    Raises:
        ConfigurationError: For an unknown key or an impossible value.
    """
    from recurra.core.configuration import override
    from recurra.data.language.configuration import LanguageDataConfig
    from recurra.data.language.tokenization import default_language_tokenizer

    known = {"name": name, **{key: value for key, value in values.items() if value is not None}}
    known = override(known, [pair.removeprefix("data.") for pair in assignments or []])
    known.setdefault("tokenizer", default_language_tokenizer(str(known["name"]), data_root))
    return LanguageDataConfig.parse(known, source="data")


def describe(config: LanguageDataConfig, data_root: Path | None, as_json: bool) -> None:
    """Shows splits, lines, words, bytes and fingerprints."""
    from recurra.data.language.corpora import load_language_dataset

    record = load_language_dataset(config, data_root).record(config.min_characters)
    if as_json:
        print_json(record)
        return
    long_lines = f"Lines > {config.min_characters}"
    headings = ["Split", "Lines", long_lines, "of them in train", "Words", "Bytes", "Fingerprint"]
    rows = [
        [
            name,
            f"{split['lines']:,}",
            f"{split['long_lines']:,}",
            "" if split["seen_lines"] is None else f"{split['seen_lines']:,}",
            f"{split['words']:,}",
            f"{split['bytes']:,}",
            split["fingerprint"],
        ]
        for name, split in record["splits"].items()
    ]
    print_table(f"{record['name']}, a text is a {record['unit']}, fingerprint {record['fingerprint']}", headings, rows)
    print_lines(["Words are separated by white space; the end of a line is one.", *record["notes"]])


def prepare(config: LanguageDataConfig, data_root: Path | None, cache_dir: Path | None, as_json: bool) -> None:
    """Tokenises all splits into the cache and shows what came out."""
    from recurra.data.language.preparation import prepare_language_data

    result = prepare_language_data(config, data_root=data_root, cache_dir=cache_dir)
    if as_json:
        print_json(result)
        return
    rows = [
        [
            split["name"],
            f"{split['tokens']:,}",
            f"{split['words']:,}",
            f"{split['tokens'] / split['words']:.3f}",
            "" if split["samples"] is None else f"{split['samples']:,}",
        ]
        for split in result["splits"]
    ]
    tokens = result["tokenizer"]
    title = f"{result['name']}: {tokens['kind']} of {tokens['vocab_size']:,} pieces, mode {result['mode']}"
    headings = ["Split", "Tokens", "Words", "Tokens a word", f"Samples of {result['context']}"]
    print_table(title, headings, rows)
    left_out = [
        f"{split['name']}: {split[key]:,} {what}"
        for split in result["splits"]
        for key, what in (("dropped_tokens", "tokens at the end fill no block"), ("cut", "samples are cut"))
        if split[key]
    ]
    lossy = [] if tokens["lossless"] else ["The tokenizer loses part of a text: no figure by word or byte is right."]
    print_lines([*result["notes"], *left_out, *lossy])
