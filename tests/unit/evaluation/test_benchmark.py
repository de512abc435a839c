"""Batches, competitors and refusals of the side-by-side benchmark; no times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertForSequenceClassification

from language_folders import write_language_model
from recurra.core.errors import ConfigurationError
from recurra.core.record import LatencyRecord, read_record
from recurra.data.tokenization import SPECIAL_TOKENS
from recurra.evaluation.benchmark import benchmark, bert_of_equal_shape, time_models
from recurra.models.foreign import ForeignConfig
from reviews import write_csv
from tiny import tiny_config, tiny_model


def test_bert_has_a_layer_for_each_application() -> None:
    config = tiny_config(num_prelude_layers=1)
    bert = BertForSequenceClassification(bert_of_equal_shape(config))
    assert len(bert.bert.encoder.layer) == 5
    layer = bert.bert.encoder.layer[0]
    assert layer.attention.self.query.weight.shape == (16, 16)
    assert layer.intermediate.dense.weight.shape == (24, 16)
    assert bert.bert.embeddings.word_embeddings.weight.shape == (40, 16)
    assert bert_of_equal_shape(tiny_config(num_labels=7)).num_labels == 7
    assert bert_of_equal_shape(tiny_config(pad_token_id=3)).pad_token_id == 3
    assert bert_of_equal_shape(tiny_config(pad_token_id=None)).pad_token_id == 0
    with pytest.raises(ConfigurationError, match="layers of another library; name --against"):
        bert_of_equal_shape(ForeignConfig(encoder={"model_type": "albert"}, num_labels=2))


def test_models_are_timed_on_the_same_rows() -> None:
    models = {"ours": tiny_model(), "bert": BertForSequenceClassification(bert_of_equal_shape(tiny_config()))}
    seen: dict[str, list[torch.Tensor]] = {name: [] for name in models}
    for name, model in models.items():
        model.register_forward_pre_hook(
            lambda _module, _args, inputs, name=name: seen[name].append(inputs["input_ids"].clone()), with_kwargs=True
        )
    records = time_models(models, [5, 3, 8], batch_size=2, precision="fp32", vocab_size=40)
    assert {(record.samples, record.batch_size) for record in records.values()} == {(3, 2)}
    assert all(torch.equal(one, other) for one, other in zip(seen["ours"], seen["bert"], strict=True))


def test_made_up_rows_give_a_record_a_model_and_batch_size() -> None:
    found = benchmark(["recurrent-tiny", "bert"], lengths=(2,), batch_sizes=(8, 32), threads=1)
    assert found.source == "made-up rows of 2 tokens"
    assert [(entry.name, entry.latency.batch_size) for entry in found.entries] == [
        ("recurrent-tiny", 8), ("bert", 8), ("recurrent-tiny", 32), ("bert", 32),
    ]  # fmt: skip
    for ours, bert in (found.entries[:2], found.entries[2:]):
        assert (ours.ratio, bert.ratio) == (1.0, bert.latency.mean_ms / ours.latency.mean_ms)
        assert (ours.latency.samples, ours.latency.threads, ours.latency.precision) == (32, 1, "fp32")
    plain = found.plain()
    assert set(plain) == {"source", "environment", "entries"} and plain["environment"]["threads"] == 1
    assert plain["entries"][1] == {"name": "bert", "ratio": found.entries[1].ratio, **vars(found.entries[1].latency)}


def test_rows_of_a_file_are_timed_at_their_lengths_as_far_as_a_run_reads_them(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_csv(tmp_path / "rows.csv", [(f"row {n} {'word ' * (n % 5)}", f"{n % 2}") for n in range(200)])
    vocabulary = tmp_path / "tokenizers" / "bert-base-uncased" / "vocab.txt"
    vocabulary.parent.mkdir(parents=True)
    vocabulary.write_text("\n".join([*SPECIAL_TOKENS, "row", "word"]) + "\n")
    asked: list[tuple[list[int], int]] = []

    def timed(models: dict[str, Any], lengths: list[int], **options: Any) -> dict[str, LatencyRecord]:
        asked.append((lengths, options["batch_size"]))
        return time_models(models, [1], **{**options, "batch_size": 1})

    monkeypatch.setattr("recurra.evaluation.benchmark.time_models", timed)
    monkeypatch.setattr("recurra.evaluation.benchmark.MOST_ROWS", 6)
    found = benchmark(["recurrent-tiny"], data=str(path), data_root=tmp_path, batch_sizes=(2,), threads=1)
    ((lengths, batch_size),) = asked
    # 20 test rows, every fourth of them; [CLS] and [SEP], two tokens at least.
    assert batch_size == 2 and len(lengths) == 5 and min(lengths) >= 4
    assert found.source == "5 rows of rows.csv (test), at most 128 tokens each"
    longest = read_record(run).config["data"]["max_length"]
    write_csv(path, [(f"row {n} {'good ' * 2 * longest}", f"{n % 2}") for n in range(40)])
    found = benchmark([str(run)], data=str(path), batch_sizes=(4,), threads=1)
    assert max(asked[1][0]) == longest < 128
    assert found.source == f"4 rows of rows.csv (test), at most {longest} tokens each"


def test_rows_are_as_long_as_every_model_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_model(max_position_embeddings=12).save_pretrained(tmp_path / "model")
    monkeypatch.setattr("recurra.evaluation.benchmark.ROWS_A_LENGTH", 1)
    found = benchmark(["recurrent-tiny", str(tmp_path / "model")], lengths=(8, 16, 32), batch_sizes=(1,), threads=1)
    assert found.source == "made-up rows of 8, 12 tokens"


def test_what_cannot_be_timed_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_language_model(run / "model")
    cases = [
        (["recurent-tiny"], 8, "unknown model 'recurent-tiny' (did you mean 'recurrent-tiny'?)"),
        (["bert"], 8, "bert takes its shape from the model before it"),
        (["recurrent-tiny", "bert", "bert"], 8, "'bert' is named twice; name each model once"),
        *[([str(name)], 8, "is a language model, and bench times classifiers; 'rec") for name in (run, run / "model")],
        (["crt-tiny"], 8, "is a language model, and bench times classifiers; 'rec"),
    ]
    for names, length, message in cases:
        with pytest.raises(ConfigurationError) as refusal:
            benchmark(names, lengths=[length])
        assert message in str(refusal.value)
