"""Hugging Face native: Auto classes, saving, the pipeline's and the Trainer's expectations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, Trainer, TrainingArguments

from recurra.models.presets import HeadKind, count_parameters
from tiny import language_model, stirred, stirred_language_model, tiny_model

LOAD_BY_AUTO = """
import recurra, sys
assert "torch" not in sys.modules and "transformers" not in sys.modules
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification
print(type(AutoConfig.from_pretrained(sys.argv[1])).__name__)
print(type(AutoModel.from_pretrained(sys.argv[1])).__name__)
print(type(AutoModelForSequenceClassification.from_pretrained(sys.argv[1])).__name__)
print(type(AutoModelForCausalLM.from_pretrained(sys.argv[2])).__name__)
"""


@pytest.mark.slow
def test_the_auto_classes_know_us_after_import_recurra_alone(tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in ("classifier", "language")]
    tiny_model().save_pretrained(folders[0])
    language_model().save_pretrained(folders[1])
    done = subprocess.run(
        [sys.executable, "-c", LOAD_BY_AUTO, *folders], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    wanted = ["RecurraConfig", "RecurraModel", "RecurraForSequenceClassification", "RecurraForCausalLM"]
    assert done.stdout.split() == wanted


HEADS = ["shared", "separate", "tied"]
CLASSIFIER, LANGUAGE = HeadKind.CLASSIFICATION, HeadKind.LANGUAGE_MODELLING
DEEP: dict[str, Any] = {"num_recurrences": 4, "exits": [1, 3]}
EVERYTHING: dict[str, Any] = {
    "embedding_size": 5, "num_prelude_layers": 1, "num_coda_layers": 1, "learned_residual_scale": True,
    "recurrence_embedding": True, "input_injection": "concat", "final_norm": True,
}  # fmt: skip


def said_by(output: Any) -> list[torch.Tensor]:
    return [*(output.exit_logits or ()), output.logits]


@pytest.mark.parametrize(
    ("kind", "shape", "dtype"),
    [
        (CLASSIFIER, {}, torch.bfloat16),
        (CLASSIFIER, EVERYTHING, torch.float32),
        *((LANGUAGE, {**DEEP, "heads": heads}, torch.float32) for heads in HEADS),
        (LANGUAGE, {**DEEP, "heads": "tied"}, torch.bfloat16),
    ],
)
def test_a_model_comes_back_bit_equal_and_each_weight_is_in_the_file_once(
    kind: HeadKind, shape: dict[str, Any], dtype: torch.dtype, tmp_path: Path
) -> None:
    model = (stirred if kind is CLASSIFIER else stirred_language_model)(**shape).to(dtype)
    model.save_pretrained(tmp_path)
    written = {path.name for path in tmp_path.iterdir()} - {"generation_config.json"}
    assert written == {"config.json", "model.safetensors"}
    auto = AutoModelForSequenceClassification if kind is CLASSIFIER else AutoModelForCausalLM
    loaded = auto.from_pretrained(tmp_path).eval()
    assert type(loaded) is type(model) and loaded.dtype == dtype
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)
    ids, asked = torch.randint(1, 11, (3, 7)), {} if kind is CLASSIFIER else {"output_exits": True}
    ours, theirs = (said_by(one(ids, **asked)) for one in (model, loaded))
    torch.testing.assert_close(theirs, ours, rtol=0, atol=0)
    data = (tmp_path / "model.safetensors").read_bytes()
    counted = count_parameters(model.config, kind).total
    assert len(data) == 8 + int.from_bytes(data[:8], "little") + counted * dtype.itemsize


@pytest.mark.parametrize("heads", HEADS)
def test_the_token_table_and_all_heads_grow_together(heads: str) -> None:
    model = language_model(heads=heads, **DEEP)
    before = model(torch.tensor([[4, 3]]), output_exits=True)
    model.resize_token_embeddings(15, mean_resizing=False)
    assert model.config.vocab_size == 15
    after = model(torch.tensor([[4, 3]]), output_exits=True)
    for first, second in zip(said_by(before), said_by(after), strict=True):
        assert second.shape == (1, 2, 15)
        torch.testing.assert_close(first, second[..., :11])
    assert model(torch.tensor([[14, 3]]), labels=torch.tensor([[14, 3]])).loss.isfinite()


def test_fresh_weights_follow_the_configuration() -> None:
    model = language_model(vocab_size=2000, hidden_size=64, embedding_size=32, kernel_size=4, initializer_range=0.1)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert torch.count_nonzero(parameter) == 0, name
        elif "norm" in name:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        elif name.endswith("embeddings.projection.weight"):
            # The map up keeps the scale of the table.
            assert parameter.std().item() == pytest.approx(32**-0.5, rel=0.15), name
        elif "depthwise" in name:
            assert parameter.abs().max() <= 0.5, name
            assert parameter.std().item() == pytest.approx(0.5 / 3**0.5, rel=0.15), name
        else:
            assert parameter.std().item() == pytest.approx(0.1, rel=0.15), name


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """As the stock collator pads; this model has no tokenizer to ask."""
    width = max(len(row["input_ids"]) for row in rows)
    fills = {"input_ids": 3, "labels": -100, "attention_mask": 0}
    return {
        key: torch.tensor([row[key] + [fill] * (width - len(row[key])) for row in rows]) for key, fill in fills.items()
    }


@pytest.mark.parametrize("kind", [CLASSIFIER, LANGUAGE])
def test_the_stock_trainer_weighs_rows_and_tokens_alike_whatever_the_micro_batch(
    kind: HeadKind, tmp_path: Path
) -> None:
    """Four micro-batches of 2 rows give the update of one batch of 8, not of four times its gradient."""
    ids = torch.randint(1, 11, (16, 8), generator=torch.Generator().manual_seed(0)).tolist()
    if kind is CLASSIFIER:
        # Rows of equal length: then every accumulated micro-batch is the same set of rows in the same shape.
        rows = Dataset.from_dict({"input_ids": ids, "labels": [row[1] % 2 for row in ids]})
    else:
        ids = [row[: 2 + number * 5 % 7] for number, row in enumerate(ids)]
        ones = [[1] * len(row) for row in ids]
        rows = Dataset.from_dict({"input_ids": ids, "labels": ids, "attention_mask": ones})
    made = [tiny_model(hidden_dropout=0.0) if kind is CLASSIFIER else language_model() for _ in range(3)]
    for model, (batch_size, accumulation) in zip(made, ((8, 1), (2, 4)), strict=False):
        arguments = TrainingArguments(
            str(tmp_path), per_device_train_batch_size=batch_size, gradient_accumulation_steps=accumulation,
            num_train_epochs=1, learning_rate=1e-2, lr_scheduler_type="constant", optim="sgd", max_grad_norm=0.0,
            seed=3, use_cpu=True, dataloader_pin_memory=False, report_to=[], disable_tqdm=True, save_strategy="no",
            logging_strategy="no",
        )  # fmt: skip
        collator = None if kind is CLASSIFIER else padded
        Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collator).train()
    whole, parts, fresh = (model.state_dict() for model in made)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)
    assert max(float((whole[name] - fresh[name]).abs().max()) for name in fresh) > 1e-4


def test_the_stock_trainer_predicts_by_the_last_head_alone(tmp_path: Path) -> None:
    model, ids = stirred(exits=[1]), torch.randint(1, 11, (6, 8), generator=torch.Generator().manual_seed(0))
    arguments = TrainingArguments(
        str(tmp_path), use_cpu=True, dataloader_pin_memory=False, report_to=[], disable_tqdm=True
    )
    found = Trainer(model=model, args=arguments).predict(Dataset.from_dict({"input_ids": ids.tolist()})).predictions
    torch.testing.assert_close(torch.from_numpy(found), model(ids).logits.detach())
