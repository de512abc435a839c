"""Language modelling: how its runs are configured and looked at before they start. Imports no torch at the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from recurra.core.errors import ConfigurationError, did_you_mean
from recurra.core.record import AuditResult
from recurra.data.configuration import RunData
from recurra.data.language.configuration import ALIASES, LanguageDataConfig
from recurra.data.language.corpora import SOURCES, is_language_corpus, load_language_dataset
from recurra.data.language.tokenization import TRAINED, default_language_tokenizer, load_language_tokenizer
from recurra.models.names import LANGUAGE_PRESET_NAMES, LANGUAGE_PRESETS, WITHOUT_CONVOLUTION
from recurra.tasks.base import DataCost, Given, Task, named_options, refuse_options
from recurra.tasks.language.data import check_context, load_run_text, running
from recurra.tasks.machine import Machine
from recurra.tasks.presentation import Shown, ShownTable
from recurra.tasks.runs import RunConfig
from recurra.training.protocols import LANGUAGE_PROTOCOLS, check_language_protocol

# A preset with this table is meant for GPT-2's tokenizer, the others for one trained on the corpus.
_GPT2_VOCABULARY = 50257
_KEYS = {"--tokenizer": "tokenizer", "--validation": "validation", "--test": "test"}


class LanguageTask(Task):
    """The next token of running text."""

    name = "language modelling"
    data_config = LanguageDataConfig
    presets: ClassVar[Mapping[str, tuple[str, Mapping[str, Any]]]] = LANGUAGE_PRESETS
    protocols = LANGUAGE_PROTOCOLS
    advice = f"a language model: {', '.join(LANGUAGE_PRESET_NAMES)}, or a model file with such a preset"
    usage = ("generate", "'A beginning'")
    kind_of_data = "running text"
    data_options = frozenset({*_KEYS, "--latency"})

    def claims(self, values: Mapping[str, Any]) -> bool:
        """Corpora of running text, and text files."""
        name = values.get("name")
        return isinstance(name, str) and is_language_corpus(name)

    def misfit(self, model: str, data_name: str) -> str:
        """Says that data are no running text."""
        hint = did_you_mean(data_name, [*ALIASES, *SOURCES])
        return (
            f"'{model}' is a language model, and '{data_name}' is not running text{hint}; "
            "give it running text (wikitext-2, english_novels, a .txt file)"
        )

    def label(self, model: str, overrides: Mapping[str, Any]) -> str:
        """The model's name; that of one that reads the future by its shape says so."""
        return f"{model}-leaks" if "leaks" not in model and self._leaks(model, overrides) else model

    def _leaks(self, model: str, overrides: Mapping[str, Any]) -> bool:
        """`recurra.models.configuration.RecurraConfig.leaks` without loading transformers."""
        shape = self.shape(model, overrides)
        if shape.get("feed_forward", "swiglu") in WITHOUT_CONVOLUTION:
            return False
        return shape.get("causal_convolution", True) is False and shape.get("kernel_size", 3) > 1

    def configure_data(
        self,
        name: str,
        options: Given,
        assigned: Mapping[str, Any],
        data_root: Path | None,
        *,
        models: Sequence[tuple[str, Mapping[str, Any]]] | None = None,
    ) -> tuple[LanguageDataConfig, str]:
        """Builds the configuration of running text; context and tokenizer follow from the model if there is one."""
        reason = f"'{name}' is running text (mode=lines or mode=packed says how samples are made)"
        refuse_options(options, self.data_options, reason)
        values = {**named_options(options, _KEYS), "name": name, **assigned}
        shape = self.shape(*models[0]) if models and len(models) == 1 else {}
        chosen: dict[str, Any] = {}
        if "tokenizer" not in values:
            if shape.get("vocab_size", _GPT2_VOCABULARY) == _GPT2_VOCABULARY:
                chosen["tokenizer"] = default_language_tokenizer(name, data_root)
            else:
                chosen["tokenizer"] = TRAINED
                values.setdefault("trained_vocab_size", shape["vocab_size"])
        if "context" not in values and "max_position_embeddings" in shape:
            chosen["context"] = shape["max_position_embeddings"]
        said = ", ".join(f"{key}: {value}" for key, value in chosen.items())
        config = LanguageDataConfig.parse({**values, **chosen}, source="data")
        return config, f"{said} (choose with data.KEY=VALUE)" if said else ""

    def describe_data(self, data: RunData, data_root: Path | None) -> Shown:
        """Splits, lines, words, bytes and fingerprints."""
        config = running(data)
        record = load_language_dataset(config, data_root).record(config.min_characters)
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
        title = f"{record['name']}, a text is a {record['unit']}, fingerprint {record['fingerprint']}"
        lines = ["Words are separated by white space; the end of a line is one.", *record["notes"]]
        return Shown(record, [ShownTable(title, headings, rows), lines])

    def prepare_data(self, data: RunData, data_root: Path | None, cache_dir: Path | None) -> Shown:
        """Tokenises all splits; says what fills no block and what is cut."""
        from recurra.data.language.preparation import prepare_language_data

        result = prepare_language_data(running(data), data_root=data_root, cache_dir=cache_dir)
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
        left_out = [
            f"{split['name']}: {split[key]:,} {what}"
            for split in result["splits"]
            for key, what in (("dropped_tokens", "tokens at the end fill no block"), ("cut", "samples are cut"))
            if split[key]
        ]
        lossless = "The tokenizer loses part of a text: no figure by word or byte is right."
        lines = [*result["notes"], *left_out, *([] if tokens["lossless"] else [lossless])]
        return Shown(result, [ShownTable(title, headings, rows), lines])

    def audit_data(self, data: RunData, data_root: Path | None) -> tuple[str, list[AuditResult]]:
        """There is none without a model: lines that stand in train as well are told by ``data describe``.

        Raises:
            ConfigurationError: Always.
        """
        del data_root
        raise ConfigurationError(
            f"'{data.name}' is running text, and the audits of data look for labels; 'recurra data describe' counts "
            "its lines that stand in train as well, 'recurra audit model' looks at a trained model"
        )

    def preflight(self, config: RunConfig, machine: Machine) -> list[str]:
        """Looks at text, tokenizer, protocol and model configuration."""
        check_language_protocol(config.protocol)
        data = running(config.data)
        load_run_text(data, machine)
        if data.tokenizer != TRAINED:
            load_language_tokenizer(data, None, machine.data_root)
        # A preset as it stands is known to be good; looking at it would load transformers.
        if config.model_overrides:
            from recurra.tasks.language.configuration import language_configuration

            language_configuration(config, None, None)
        check_context(config, self.shape(config.model, config.model_overrides)["max_position_embeddings"])
        return []

    def data_cost(self, data: RunData, machine: Machine) -> DataCost:
        """Counts training samples by their length."""
        import numpy as np

        from recurra.data.language.preparation import encode_for, make_samples

        config = running(data)
        dataset = load_language_dataset(config, machine.data_root, ["train"])
        tokenizer = load_language_tokenizer(config, dataset, machine.data_root)
        samples = make_samples(encode_for(dataset.splits["train"], config, tokenizer, machine.cache_dir), config)
        lengths, rows = np.unique(samples.lengths, return_counts=True)
        counts = {str(length): int(count) for length, count in zip(lengths, rows, strict=True)}
        return DataCost([], counts, vocab_size=len(tokenizer))

    def training_share(self, data: RunData) -> float:
        """The fraction."""
        return data.fraction


TASK = LanguageTask()
