"""An encoder of another family, trained, measured and exported in the way that a user goes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from recurra import Classifier
from recurra.core.errors import ConfigurationError
from recurra.core.record import RunRecord
from recurra.data.configuration import DataConfig
from recurra.deployment.export.build import export_run
from recurra.deployment.export.manifest import ExportOptions
from recurra.deployment.onnx.traced import write_traced
from recurra.ladder import choose_models
from recurra.models.adaptation.source import find_encoder
from recurra.models.foreign import ForeignForSequenceClassification, foreign_configuration
from recurra.study.run import execute_run
from recurra.tasks.base import task
from recurra.tasks.runs import make_run
from recurra.tasks.study_data import Machine, StudyData
from recurra.training.protocols import PROTOCOLS
from reviews import write_reviews
from tiny_encoder import FOREIGN, write_foreign_encoder


def test_it_is_trained_measured_and_exported_and_only_sharing_is_refused(tmp_path: Path) -> None:
    reviews = tmp_path / "reviews.csv"
    write_reviews(reviews, rows=240)
    texts = reviews.read_text(encoding="utf-8").splitlines()
    encoder = str(write_foreign_encoder(tmp_path / "encoder", "distilbert", texts))
    ladder = choose_models(task("classification"), encoder=encoder)
    assert ladder.models == ["linear-tuned", encoder] and ladder.peer is None
    with pytest.raises(ConfigurationError, match="is a distilbert, whose layers cannot be shared"):
        choose_models(task("classification"), encoder=encoder, plan="0 (1)x2")

    data = DataConfig(name=str(reviews), tokenizer="trained", max_length=24)
    quick = {"max_epochs": 4, "learning_rate": 1e-2, "batch_size": 8}
    protocol = PROTOCOLS["finetune"].model_copy(update=quick)
    for number, (overrides, why) in enumerate(
        (
            ({"hidden_dropout": 0.3}, "'hidden_dropout' is 0.3, and the layers of a distilbert come from transformers"),
            ({"plan": "1"}, "whose layers cannot be shared"),
            ({"method": "setfit"}, "'method' is 'setfit', only for encoders of bert"),
        )
    ):
        config = make_run(encoder, data, protocol, seed=0, precision="fp32", overrides=overrides)
        with pytest.raises(ConfigurationError, match=why):
            execute_run(StudyData(Machine(latency=False, threads=1)), tmp_path / f"refused-{number}", config)

    config = make_run(encoder, data, protocol, seed=0, precision="fp32")
    data = StudyData(Machine(cache_dir=tmp_path / "cache", latency=True, threads=1))
    record = execute_run(data, tmp_path / "run", config)
    assert isinstance(record, RunRecord) and record.metrics["test"].accuracy > 0.9
    assert record.model.encoder is not None and record.model.encoder.layers == 2 and record.latency
    assert {audit.status for audit in record.audits if audit.name.startswith("invariance.")} == {"passed"}
    assert record.model.parameters > record.model.embedding_parameters > 0

    classifier = Classifier.from_run(tmp_path / "run")
    rows = ["a good film", "no idea", "", *texts[1:9]]
    for format_name, precision in (("safetensors", "fp32"), ("onnx", "fp32"), ("onnx", "int8")):
        folder = tmp_path / f"{format_name}-{precision}"
        manifest = export_run(tmp_path / "run", folder, ExportOptions(format_name, precision))
        assert manifest.check.label_agreement >= 0.98
        if precision == "fp32":
            found = Classifier.from_export(folder).logits(rows)
            np.testing.assert_allclose(found, classifier.logits(rows), rtol=1e-4, atol=1e-4)
    with pytest.raises(ConfigurationError, match="need every piece"):
        export_run(tmp_path / "run", tmp_path / "small", ExportOptions("onnx", "fp32", vocabulary=0))


@pytest.mark.parametrize("kind", FOREIGN)
def test_torch_writes_every_family_as_onnx(kind: str, tmp_path: Path) -> None:
    source = find_encoder(str(write_foreign_encoder(tmp_path / "encoder", kind)), any_family=True)
    names = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    model = ForeignForSequenceClassification(foreign_configuration(source, **names)).eval()
    write_traced(model, "fp32", tmp_path, {"labels": "[]"})
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for rows, tokens in ((1, 3), (4, 17), (2, 40)):
        ids = torch.randint(5, source.values["vocab_size"], (rows, tokens))
        mask = torch.ones_like(ids)
        mask[0, tokens - 1 :] = 0
        (found,) = session.run(["logits"], {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
        with torch.no_grad():
            np.testing.assert_allclose(found, model(ids, mask).logits.numpy(), atol=1e-5)
