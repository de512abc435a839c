"""Encoders of other families: transformers' own layers under our head, in our layout of rows, saved and read again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification

from recurra.core.errors import CheckpointError, ConfigurationError
from recurra.models.adaptation.convert import load_encoder_weights
from recurra.models.adaptation.source import find_encoder
from recurra.models.foreign import ForeignForSequenceClassification, foreign_configuration
from recurra.models.loading import load_classifier_model, load_foreign_weights
from tiny import tiny_model
from tiny_encoder import FOREIGN, write_foreign_encoder

LABELS = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}


@pytest.mark.parametrize("kind", FOREIGN)
def test_it_is_the_encoder_of_transformers_with_a_linear_map_of_the_mean(kind: str, tmp_path: Path) -> None:
    source = find_encoder(str(write_foreign_encoder(tmp_path / "encoder", kind)), any_family=True)
    model = ForeignForSequenceClassification(foreign_configuration(source, **LABELS)).eval()
    load_foreign_weights(model, source)
    ids = torch.randint(5, source.values["vocab_size"], (3, 9), generator=torch.Generator().manual_seed(0))
    mask, labels = torch.ones_like(ids), torch.tensor([0, 1, 0])
    mask[1, 6:], ids[1, 6:] = 0, 0
    output = model(ids, mask, labels=labels)
    states = AutoModel.from_pretrained(source.folder).eval()(ids, attention_mask=mask).last_hidden_state
    means = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
    torch.testing.assert_close(output.logits, model.classifier(means))
    torch.testing.assert_close(output.loss, torch.nn.functional.cross_entropy(output.logits, labels))
    output.loss.backward()
    assert all(weight.grad is not None for weight in model.model.parameters())
    # Rows end to end, with an empty one that fills a batch up.
    packed = model(ids[mask.bool()][None], row_lengths=torch.tensor([9, 6, 9, 0])).logits
    torch.testing.assert_close(packed[:3], output.logits)

    assert model.config.count_parameters().total == sum(weight.numel() for weight in model.parameters())
    assert model.config.forward_flops(8) > 2 * 8 * model.config.count_parameters().core
    model.save_pretrained(tmp_path / "model")
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    for loaded in (load_classifier_model(tmp_path / "model"), stock):
        assert torch.equal(loaded(ids, mask).logits, output.logits)


def test_only_sharing_and_damaged_folders_are_refused(tmp_path: Path) -> None:
    folder = write_foreign_encoder(tmp_path / "encoder", "mpnet")
    with pytest.raises(CheckpointError, match="model type 'mpnet', whose layers cannot be made shared"):
        find_encoder(str(folder))
    source = find_encoder(str(folder), any_family=True)
    with pytest.raises(ConfigurationError, match=r"plan '0': .* is a mpnet, whose layers cannot be shared"):
        source.plan("0")
    with pytest.raises(ConfigurationError, match="is a mpnet, which is fine-tuned as it is alone"):
        load_encoder_weights(tiny_model().model, source)
    # A folder that asks for more than it holds, or lacks weights.
    config = folder / "config.json"
    whole = config.read_text(encoding="utf-8")
    config.write_text(whole.replace('"vocab_size": ', '"vocab_size": 3999'), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"asks for tables of|'vocab_size' is"):
        find_encoder(str(folder), any_family=True)
    config.write_text(whole.replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'), encoding="utf-8")
    source = find_encoder(str(folder), any_family=True)
    with pytest.raises(CheckpointError, match=r"lacks weight 'encoder\.layer\.2"):
        load_foreign_weights(ForeignForSequenceClassification(foreign_configuration(source, **LABELS)), source)
