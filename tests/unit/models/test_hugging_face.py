"""Hugging Face native: Auto classes, saving, the pipeline's and the Trainer's expectations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    Trainer,
    TrainingArguments,
)

from recurra import RecurraConfig, RecurraForSequenceClassification, RecurraModel
from recurra.models.presets import count_parameters
from tiny import language_model, stir, tiny_config, tiny_model, tiny_split

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


def test_the_auto_classes_build_from_a_configuration() -> None:
    assert isinstance(AutoConfig.for_model("recurra"), RecurraConfig)
    assert isinstance(AutoModel.from_config(tiny_config()), RecurraModel)
    assert isinstance(AutoModelForSequenceClassification.from_config(tiny_config()), RecurraForSequenceClassification)


@pytest.mark.parametrize("shape", SHAPES)
def test_save_and_load_is_bit_equal_in_safetensors_of_the_counted_size(shape: str, tmp_path: Path) -> None:
    model = tiny_model(**SHAPES[shape]).eval()
    stir(model)
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


def test_a_half_precision_model_is_saved_in_half_the_bytes(tmp_path: Path) -> None:
    model = tiny_model().to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    header = int.from_bytes((tmp_path / "model.safetensors").read_bytes()[:8], "little")
    size = (tmp_path / "model.safetensors").stat().st_size
    assert size == 8 + header + 2 * count_parameters(model.config).total
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path).dtype == torch.bfloat16


def test_the_base_model_is_read_from_a_classifier(tmp_path: Path) -> None:
    model = tiny_model().eval()
    model.save_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path).eval()
    ids = torch.randint(1, 40, (2, 5))
    assert torch.equal(base(ids).last_hidden_state, model.model(ids).last_hidden_state)


def test_fresh_weights_follow_the_configuration() -> None:
    model = tiny_model(
        vocab_size=2000, hidden_size=64, initializer_range=0.1, residual_scale=0.25, learned_residual_scale=True
    )
    assert model.model.core.residual_scale.item() == 0.25
    assert model.model.embeddings.token.weight[1:].std().item() == pytest.approx(0.1, rel=0.02)
    assert torch.count_nonzero(model.model.embeddings.token.weight[0]) == 0
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert torch.count_nonzero(parameter) == 0, name
        if name.endswith("norm.weight"):
            assert torch.equal(parameter, torch.ones_like(parameter)), name


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_what_must_stay_on_one_device_is_a_whole_layer(placement: str) -> None:
    model = tiny_model(norm_placement=placement)
    layers = {type(module).__name__ for module in model.model.core.block.layers}
    assert layers and layers <= set(RecurraModel._no_split_modules)


@pytest.mark.parametrize(("own", "rate"), [(None, 0.3), (0.0, 0.0), (0.1, 0.1)])
def test_embeddings_have_their_own_dropout_or_that_of_the_layers(own: float | None, rate: float) -> None:
    assert tiny_model(hidden_dropout=0.3, embedding_dropout=own).model.embeddings.dropout.p == rate


def test_the_token_table_can_be_exchanged() -> None:
    model = tiny_model()
    assert model.get_input_embeddings().num_embeddings == 40
    model.resize_token_embeddings(50, mean_resizing=False)
    assert model.config.vocab_size == 50
    assert model(torch.tensor([[49, 3]])).logits.shape == (1, 2)


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


def test_the_stock_trainer_learns_and_saves(tmp_path: Path) -> None:
    split = tiny_split(rows=128)
    rows = Dataset.from_list(
        [{"input_ids": split[index]["input_ids"], "labels": split[index]["labels"]} for index in range(128)]
    )
    model = tiny_model(hidden_dropout=0.0)

    def pad(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        width = max(len(row["input_ids"]) for row in batch)
        ids = torch.tensor([list(row["input_ids"]) + [0] * (width - len(row["input_ids"])) for row in batch])
        return {
            "input_ids": ids,
            "attention_mask": (ids > 0).long(),
            "labels": torch.tensor([row["labels"] for row in batch]),
        }

    arguments = stock_arguments(
        tmp_path,
        num_train_epochs=12,
        optim="adamw_torch",
        per_device_train_batch_size=16,
        per_device_eval_batch_size=32,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows, data_collator=pad)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.7 * before
    trainer.save_model(str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "model.safetensors").exists()
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert torch.equal(loaded.classifier.weight, model.classifier.weight)


def test_labels_travel_with_the_configuration(tmp_path: Path) -> None:
    names = {0: "negative", 1: "positive"}
    model = tiny_model(id2label=names, label2id={name: index for index, name in names.items()})
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["id2label"] == {
        "0": "negative",
        "1": "positive",
    }
    assert AutoConfig.from_pretrained(tmp_path).id2label == names


def test_importing_us_leaves_transformers_as_it_is() -> None:
    assert transformers.AutoConfig.for_model("bert").model_type == "bert"
