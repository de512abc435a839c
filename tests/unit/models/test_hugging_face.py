"""Hugging Face native: Auto classes, saving, the pipeline's and the Trainer's expectations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    Trainer,
    TrainingArguments,
)

from recurra import RecurraForCausalLM
from recurra.models.presets import HeadKind, count_parameters
from tiny import language_model, stir, stirred, tiny_model

SHAPES: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": {
        "embedding_size": 5, "num_prelude_layers": 1, "num_coda_layers": 1, "learned_residual_scale": True,
        "recurrence_embedding": True, "input_injection": "concat", "final_norm": True,
    },
}  # fmt: skip

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


@pytest.mark.parametrize("shape", SHAPES)
def test_save_and_load_is_bit_equal_in_safetensors_of_the_counted_size(shape: str, tmp_path: Path) -> None:
    model = stirred(**SHAPES[shape])
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert model.state_dict().keys() == loaded.state_dict().keys()
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, loaded.state_dict()[name]), name
    ids = torch.randint(1, 40, (3, 7))
    assert torch.equal(model(ids).logits, loaded(ids).logits)
    header = int.from_bytes((tmp_path / "model.safetensors").read_bytes()[:8], "little")
    assert (tmp_path / "model.safetensors").stat().st_size == 8 + header + 4 * count_parameters(model.config).total


def stock_arguments(folder: Path, **values: Any) -> TrainingArguments:
    return TrainingArguments(
        **{
            "output_dir": str(folder), "num_train_epochs": 1, "learning_rate": 1e-2, "lr_scheduler_type": "constant",
            "use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "max_grad_norm": 0.0,
            "optim": "sgd", "seed": 3, "dataloader_pin_memory": False, "logging_strategy": "no", **values,
        }
    )  # fmt: skip


def stock_data(rows: int) -> Dataset:
    """Rows of equal length: then every accumulated micro-batch is the same set of rows in the same shape."""
    dice = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 40, (rows, 6), generator=dice)
    return Dataset.from_dict({"input_ids": ids.tolist(), "labels": (ids[:, 1] % 2).tolist()})


def test_the_stock_trainer_scales_accumulated_gradients_right(tmp_path: Path) -> None:
    """Two micro-batches of 8 give the update of one batch of 16, not of twice its gradient."""
    results = []
    for batch_size, accumulation in ((16, 1), (8, 2)):
        model = tiny_model(hidden_dropout=0.0)
        arguments = stock_arguments(
            tmp_path, per_device_train_batch_size=batch_size, gradient_accumulation_steps=accumulation
        )
        Trainer(model=model, args=arguments, train_dataset=stock_data(32)).train()
        results.append(model.state_dict())
    fresh = tiny_model(hidden_dropout=0.0).state_dict()
    for name, weight in results[0].items():
        torch.testing.assert_close(results[1][name], weight, rtol=1e-4, atol=1e-6)
    moved = max(float((results[0][name] - fresh[name]).abs().max()) for name in fresh)
    assert moved > 1e-4


HEADS = ["shared", "separate", "tied"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", HEADS)
def test_a_language_model_comes_back_bit_equal_and_each_weight_is_in_the_file_once(
    heads: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = language_model(heads=heads, num_recurrences=4, exits=[1, 3]).eval()
    stir(model)
    model = model.to(dtype)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert isinstance(loaded, RecurraForCausalLM) and loaded.dtype == dtype
    assert model.state_dict().keys() == loaded.state_dict().keys()
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, loaded.state_dict()[name]), name
    ids = torch.randint(0, 11, (3, 7))
    ours, theirs = (one(ids, output_exits=True) for one in (model, loaded))
    for first, second in zip((*ours.exit_logits, ours.logits), (*theirs.exit_logits, theirs.logits), strict=True):
        assert torch.equal(first, second)
    data = (tmp_path / "model.safetensors").read_bytes()
    counted = count_parameters(model.config, HeadKind.LANGUAGE_MODELLING).total
    assert len(data) == 8 + int.from_bytes(data[:8], "little") + counted * dtype.itemsize


@pytest.mark.parametrize("heads", HEADS)
def test_the_token_table_and_all_heads_grow_together(heads: str) -> None:
    model = language_model(heads=heads, num_recurrences=4, exits=[1, 3])
    before = model(torch.tensor([[4, 3]]), output_exits=True)
    model.resize_token_embeddings(15, mean_resizing=False)
    assert model.config.vocab_size == 15
    after = model(torch.tensor([[4, 3]]), output_exits=True)
    for first, second in zip((*before.exit_logits, before.logits), (*after.exit_logits, after.logits), strict=True):
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


def rows_of_many_lengths(count: int) -> Dataset:
    dice = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 9, (count,), generator=dice).tolist()
    ids = [torch.randint(0, 11, (length,), generator=dice).tolist() for length in lengths]
    return Dataset.from_dict({"input_ids": ids, "labels": ids, "attention_mask": [[1] * len(row) for row in ids]})


class Padding:
    """The stock collator's padding; this model has no tokenizer to ask."""

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        width = max(len(row["input_ids"]) for row in rows)
        fills = {"input_ids": 3, "labels": -100, "attention_mask": 0}
        return {
            key: torch.tensor([row[key] + [fill] * (width - len(row[key])) for row in rows])
            for key, fill in fills.items()
        }


def test_the_stock_trainer_weighs_every_token_alike_whatever_the_micro_batch(tmp_path: Path) -> None:
    """Four micro-batches of 4 rows of different lengths give the update of one batch of 16."""
    results = []
    for batch_size, accumulation in ((16, 1), (4, 4)):
        model = language_model()
        arguments = stock_arguments(
            tmp_path, per_device_train_batch_size=batch_size, gradient_accumulation_steps=accumulation
        )
        data = rows_of_many_lengths(32)
        Trainer(model=model, args=arguments, train_dataset=data, data_collator=Padding()).train()
        results.append(model.state_dict())
    fresh = language_model().state_dict()
    for name, weight in results[0].items():
        torch.testing.assert_close(results[1][name], weight, rtol=1e-4, atol=1e-6, msg=lambda text, n=name: n + text)
    assert max(float((results[0][name] - fresh[name]).abs().max()) for name in fresh) > 1e-4
