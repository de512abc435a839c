"""Language modelling: the next token of running text. Torch is loaded in methods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from recurra.core.errors import ConfigurationError, did_you_mean
from recurra.core.progress import Reporter
from recurra.core.record import AnyRecord, AuditResult, LanguageRunRecord
from recurra.core.sealed import MODEL_NAME, sealed_model
from recurra.data.configuration import ALIASES, LanguageDataConfig, RunData
from recurra.data.language.corpora import SOURCES, is_language_corpus
from recurra.data.language.tokenization import (
    default_language_tokenizer,
    encode_for,
    is_lossless,
    load_language_tokenizer,
    make_samples,
    read_language_tokenizer,
)
from recurra.data.tokenization import TRAINED, describe_tokenizer
from recurra.models.names import LANGUAGE_PRESETS, WITHOUT_CONVOLUTION
from recurra.tasks.base import (
    Competitor,
    DataCost,
    Given,
    Model,
    RunConfig,
    Task,
    allowed_options,
)
from recurra.tasks.exits import ExitSubject
from recurra.tasks.language.data import check_context, language_configuration, load_run_text, running
from recurra.tasks.study_data import StudyData
from recurra.tasks.tables import CommandResult, Table
from recurra.training.protocols import LANGUAGE_PROTOCOLS, ProtocolConfig, check_language_protocol

# A preset with this table is meant for GPT-2's tokenizer, the others for one trained on the corpus.
_GPT2_VOCABULARY = 50257
_EVALUATION_OPTIONS = ("split", "data", "stride", "by_position", "precision")


class LanguageTask(Task):
    """The next token of running text."""

    name = "language modelling"
    data_config = LanguageDataConfig
    presets: ClassVar[Mapping[str, tuple[str, Mapping[str, Any]]]] = LANGUAGE_PRESETS
    protocols = LANGUAGE_PROTOCOLS
    advice = f"a language model: {', '.join(LANGUAGE_PRESETS)}, or a model file with such a preset"
    usage = ("generate", "'A beginning'")
    kind_of_data = "running text"
    exit_option = "--bound"
    exit_default = 0.01
    exit_quality = "loss at most {:g} % above the full model's"
    architecture = "RecurraForCausalLM"
    takes_foreign_models = True
    timing_scope = "model"

    def claims(self, values: Mapping[str, Any]) -> bool:
        name = values.get("name")
        return isinstance(name, str) and is_language_corpus(name)

    def misfit(self, model: str, data_name: str) -> str:
        hint = did_you_mean(data_name, [*ALIASES, *SOURCES])
        return (
            f"'{model}' is a language model, and '{data_name}' is not running text{hint}; "
            "give it running text (wikitext-2, english_novels, a .txt file)"
        )

    def load_protocol(self, name: str, changes: Mapping[str, Any] | None = None) -> ProtocolConfig:
        """Also refuses settings of a protocol with which language models are not trained."""
        protocol = super().load_protocol(name, changes)
        check_language_protocol(protocol)
        return protocol

    def check_model(self, model: str, overrides: Mapping[str, Any], data_name: str) -> None:
        """Also refuses a model that is not causal, before it is built."""
        super().check_model(model, overrides, data_name)
        if not overrides.get("causal", True):
            raise ConfigurationError(
                f"model '{model}': 'causal' is {overrides['causal']}; allowed for a language model: true"
            )

    def label(self, model: str, overrides: Mapping[str, Any]) -> str:
        """The model's name, with ``-leaks`` if its shape lets it read the future and the name does not say so.

        It is `recurra.models.configuration.RecurraConfig.leaks` without loading transformers.
        """
        shape = self.shape(model, overrides)
        # A wrong kernel_size is refused later, where the model is configured.
        leaks = (
            shape.get("causal_convolution", True) is False
            and shape.get("feed_forward", "swiglu") not in WITHOUT_CONVOLUTION
            and shape.get("kernel_size", 3) != 1
        )
        return f"{model}-leaks" if leaks and "leaks" not in model else model

    def configure_data(
        self, values: Mapping[str, Any], data: StudyData, *, models: Sequence[Model] | None = None
    ) -> tuple[LanguageDataConfig, str]:
        """Builds the configuration of running text; context and tokenizer follow from the model if there is one."""
        values = dict(values)
        shape = self.shape(*models[0]) if models and len(models) == 1 else {}
        chosen: dict[str, Any] = {}
        if "tokenizer" not in values:
            if shape.get("vocab_size", _GPT2_VOCABULARY) == _GPT2_VOCABULARY:
                chosen["tokenizer"] = default_language_tokenizer(str(values["name"]), data.machine.data_root)
            else:
                chosen["tokenizer"] = TRAINED
                values.setdefault("trained_vocab_size", shape["vocab_size"])
        if "context" not in values and "max_position_embeddings" in shape:
            chosen["context"] = shape["max_position_embeddings"]
        config = LanguageDataConfig.parse({**values, **chosen}, source="data")
        note = ", ".join(f"{key}: {value}" for key, value in chosen.items())
        return config, f"{note} (choose with data.KEY=VALUE)" if note else ""

    def describe_data(self, config: RunData, data: StudyData) -> CommandResult:
        config = running(config)
        record = data.text(config).record(config.min_characters)
        rows = [
            {
                "Split": name,
                "Lines": f"{split['lines']:,}",
                f"Lines > {config.min_characters}": f"{split['long_lines']:,}",
                "of them in train": "" if split["seen_lines"] is None else f"{split['seen_lines']:,}",
                "Words": f"{split['words']:,}",
                "Bytes": f"{split['bytes']:,}",
                "Fingerprint": split["fingerprint"],
            }
            for name, split in record["splits"].items()
        ]
        title = f"{record['name']}, a text is a {record['unit']}, fingerprint {record['fingerprint']}"
        lines = ["Words are separated by white space; the end of a line is one.", *record["notes"]]
        return CommandResult(record, [Table("splits", title, rows), lines])

    def prepare_data(self, config: RunData, data: StudyData) -> CommandResult:
        """Tokenises all splits; says how many tokens fill no block and how many samples are cut."""
        config, machine = running(config), data.machine
        dataset = data.text(config)
        tokenizer = load_language_tokenizer(config, dataset, machine.data_root)
        splits: list[dict[str, Any]] = []
        for name, split in dataset.splits.items():
            encoded = encode_for(split, config, tokenizer, machine.cache_dir)
            samples = make_samples(encoded, config) if name == "train" else None
            splits.append(
                {
                    "name": name,
                    "tokens": len(encoded.joined),
                    "words": encoded.words,
                    "bytes": encoded.num_bytes,
                    "samples": None if samples is None else len(samples),
                    "dropped_tokens": samples.dropped_tokens if samples else 0,
                    "cut": samples.cut if samples else 0,
                }
            )
        tokens = {**describe_tokenizer(tokenizer), "lossless": is_lossless(tokenizer)}
        rows = [
            {
                "Split": split["name"],
                "Tokens": f"{split['tokens']:,}",
                "Words": f"{split['words']:,}",
                "Tokens a word": f"{split['tokens'] / split['words']:.3f}",
                f"Samples of {config.context}": "" if split["samples"] is None else f"{split['samples']:,}",
            }
            for split in splits
        ]
        title = f"{dataset.name}: {tokens['kind']} of {tokens['vocab_size']:,} pieces, mode {config.mode}"
        left_out = [
            f"{split['name']}: {split[key]:,} {problem}"
            for split in splits
            for key, problem in (("dropped_tokens", "tokens at the end fill no block"), ("cut", "samples are cut"))
            if split[key]
        ]
        lossless = "The tokenizer loses part of a text: no figure by word or byte is right."
        lines = [*dataset.notes, *left_out, *([] if tokens["lossless"] else [lossless])]
        result = {
            "name": dataset.name,
            "mode": config.mode,
            "context": config.context,
            "fingerprint": dataset.fingerprint,
            "tokenizer": tokens,
            "splits": splits,
            "notes": dataset.notes,
        }
        return CommandResult(result, [Table("splits", title, rows), lines])

    def audit_data(self, config: RunData, data: StudyData) -> tuple[str, list[AuditResult]]:
        """Refuses: no audit works without a model; ``data describe`` counts lines that stand in train as well.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            f"'{config.name}' is running text, and audits of data need labels; 'recurra data describe' counts its "
            "lines that are also in train, 'recurra audit model' checks a trained model"
        )

    def data_cost(self, config: RunData, data: StudyData) -> DataCost:
        config, machine = running(config), data.machine
        dataset = data.text(config)
        tokenizer = load_language_tokenizer(config, dataset, machine.data_root)
        samples = make_samples(encode_for(dataset.splits["train"], config, tokenizer, machine.cache_dir), config)
        return DataCost([], Counter(samples.lengths.tolist()), vocab_size=len(tokenizer))

    def preflight(self, config: RunConfig, data: StudyData) -> list[str]:
        if config.teachers:
            raise ConfigurationError(
                f"model '{config.model}': 'teacher' is '{config.teachers[0].name}', and teachers are for classifiers; "
                "leave it out: a language model learns from its text alone"
            )
        text = running(config.data)
        load_run_text(text, data)
        if text.tokenizer != TRAINED:
            load_language_tokenizer(text, None, data.machine.data_root)
        # A preset as it stands is known to be good; looking at it would load transformers.
        if config.model_overrides:
            language_configuration(config, None, None)
        check_context(config, self.shape(config.model, config.model_overrides)["max_position_embeddings"])
        return []

    def training_modules(self, config: RunConfig) -> Sequence[str]:
        return ("recurra.tasks.language.training",)

    def trainer(self, config: RunConfig) -> Callable[..., Any]:
        from recurra.tasks.language.training import train_language

        return train_language

    def record_run(
        self, config: RunConfig, trained: Any, folder: Path, data: StudyData, reporter: Reporter, *, started: float
    ) -> LanguageRunRecord:
        from recurra.tasks.language.training import record_language

        return record_language(self, config, trained, data, reporter, started=started)

    def present(self, record: AnyRecord, output: str) -> CommandResult:
        from recurra.tasks.language.evaluation import head_table

        assert isinstance(record, LanguageRunRecord)
        audits = [{"Audit": audit.name, "State": audit.status, "Finding": audit.summary} for audit in record.audits]
        lines = [f"run: {output}", f"measure it: recurra evaluate {output} --stride {record.data.context // 2}"]
        return CommandResult(
            {"output": output, **record.model_dump(mode="json")},
            [
                head_table(f"{record.label}: {record.run_id}", record.metrics),
                Table("audits", "audits", audits),
                lines,
            ],
            [audit.name for audit in record.failed_audits()],
        )

    def evaluate(self, run: Path, options: Given, data_root: Path | None) -> CommandResult:
        from recurra.tasks.language.evaluation import evaluate_language_run

        reason = f"'{run}' is a run of a language model, which predicts no labels"
        values = allowed_options(options, _EVALUATION_OPTIONS, reason)
        return evaluate_language_run(run, data_root=data_root, **values)

    def exit_subject(self, run: Path, data_root: Path | None) -> ExitSubject:
        from recurra.tasks.language.evaluation import LanguageSubject

        return LanguageSubject(run, data_root)

    def model_class(self) -> Any:
        from recurra.models.language_modeling import RecurraForCausalLM

        return RecurraForCausalLM

    def load_model(self, folder: Path) -> Any:
        from recurra.models.loading import load_language_model

        return load_language_model(folder)

    def audit_model(self, model: Any, seed: int) -> list[AuditResult]:
        from recurra.tasks.language.training import language_audits

        return language_audits(model, seed)

    def sample_step(self, config: RunConfig, length: int) -> tuple[Any, float, Any]:
        from recurra.models.presets import language_flops

        shape = language_configuration(config, None, None)
        return self.model_class()(shape), language_flops(shape, length, with_exits=True), None

    def epoch_flops(self, config: RunConfig, lengths: Mapping[int, int], cost: DataCost) -> float:
        from recurra.models.presets import language_flops

        shape = language_configuration(config, cost.vocab_size, None)
        return float(sum(rows * language_flops(shape, size, with_exits=True) for size, rows in lengths.items()))

    def timing_key(self, record: AnyRecord) -> str:
        """Runs with the same tokens and windows are timed on the same windows."""
        assert isinstance(record, LanguageRunRecord)
        return f"{record.data.fingerprint} {record.data.tokenizer.get('hash')} {record.data.context}"

    def timing_inputs(self, record: AnyRecord, folder: Path, data: StudyData) -> list[Any]:
        from recurra.tasks.language.evaluation import own_split, windows

        assert isinstance(record, LanguageRunRecord)
        config = LanguageDataConfig.parse(record.config["data"], source="record")
        text = own_split(record, config, record.data.reported_splits[-1], data.machine.data_root)
        tokenizer = read_language_tokenizer(folder / MODEL_NAME)
        return windows(encode_for(text, config, tokenizer, data.machine.cache_dir).joined, config.context)

    def timing_batches(self, inputs: Sequence[Any], batch_size: int) -> list[Any]:
        """Windows one below the other, ``(batch_size, context)``."""
        import torch

        return list(torch.stack(list(inputs)).split(batch_size))

    def competitors(self, name: str, folder: Path, record: AnyRecord, *, threads: int) -> Iterator[Competitor]:
        from recurra.models.inference import default_device
        from recurra.tasks.language.evaluation import forward_pass

        model = self.load_model(sealed_model(folder)).to(default_device())
        yield Competitor(name, forward_pass(model, record.environment.precision), record.environment.precision)


TASK = LanguageTask()
