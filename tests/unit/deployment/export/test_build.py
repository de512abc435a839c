"""An export: what lies in it, what it computes, what stops it, and what a smaller vocabulary changes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from scipy.special import softmax
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast, pipeline

from recurra import Classifier
from recurra.cli.main import main
from recurra.core.errors import AuditError, CheckpointError, ConfigurationError, StorageError
from recurra.core.record import AuditResult, OneLabelRecord, read_record, write_record
from recurra.core.sealed import seal_model
from recurra.core.terminal import amount
from recurra.data.cleaning import clean_texts
from recurra.data.corpora import recorded_split
from recurra.data.tokenization import as_transformers, read_vocabulary, train_wordpiece, wordpiece
from recurra.deployment.engines.trained import TransformerEngine
from recurra.deployment.export import formats
from recurra.deployment.export.build import export_run, trim
from recurra.deployment.export.manifest import ExportManifest, ExportOptions, needs_torch, read_export
from recurra.models.controls import LINEAR_NAME
from recurra.models.controls.fitting import fit_static, fit_tuned
from reviews import Command, review_rows, snapshot, write_csv
from tiny import stirred, tiny_model

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TEXTS = [text for text, _ in review_rows(60, seed=9)]
TRAIN = [text for text, _ in review_rows(40)]


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A run that may be written into."""
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.fixture(scope="module")
def exports(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, ExportManifest]]:
    folder = tmp_path_factory.mktemp("exports")
    return {
        precision: (folder / precision, export_run(run, folder / precision, ExportOptions(precision=precision)))
        for precision in DTYPES
    }


@pytest.mark.parametrize("precision", DTYPES)
def test_weights_are_the_runs_rounded_once_and_the_check_is_what_a_reader_measures(
    precision: str, run: Path, exports: dict[str, Any]
) -> None:
    folder, manifest = exports[precision]
    original, stored = load_file(run / "model" / "model.safetensors"), load_file(folder / "model.safetensors")
    assert set(stored) == set(original)
    for name, weight in original.items():
        assert weight.dtype == torch.float32 and stored[name].dtype == DTYPES[precision]
        assert torch.equal(stored[name], weight.to(DTYPES[precision]))
    weights = sum(weight.numel() * DTYPES[precision].itemsize for weight in original.values())
    size = (folder / "model.safetensors").stat().st_size
    # The rest is the header with the weights' names.
    assert weights < size == manifest.files["model.safetensors"].size_bytes < weights + 120 * len(original) + 200
    assert {path.name for path in folder.iterdir()} == {*manifest.files, "export.json"} == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "run-record.json", "README.md",
        "export.json",
    }  # fmt: skip
    record = read_record(run)
    assert read_export(folder) == manifest and read_record(folder / "run-record.json") == record
    assert (manifest.run_id, manifest.record_hash) == (record.run_id, record.content_hash)
    assert (manifest.label_names, manifest.max_length) == (record.data.label_names, 24)
    assert list(folder.parent.glob(".*")) == []
    split, check = recorded_split(record, "validation", None), manifest.check
    reference = Classifier.from_run(run, precision="fp32").logits(split.texts, clean=False)
    logits = Classifier.from_export(folder).logits(split.texts, clean=False)
    assert check.source == "the validation split of reviews.csv" and check.rows == len(split)
    assert check.label_agreement == np.mean(reference.argmax(1) == logits.argmax(1)) >= 0.95
    assert check.largest_logit_difference == pytest.approx(np.abs(reference - logits).max(), abs=1e-6)
    assert check.accuracy == np.mean(logits.argmax(1) == split.labels)
    assert check.reference_accuracy == np.mean(reference.argmax(1) == split.labels) > 0.8
    assert (check.largest_logit_difference == 0) == (precision == "fp32")


@pytest.mark.parametrize("form", ["safetensors", "onnx", "linear"])
def test_an_export_gives_the_calibrated_probabilities_of_the_run(
    form: str, run: Path, linear_run: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(linear_run if form == "linear" else run, tmp_path / "run"))
    write_record(copy, read_record(copy).model_copy(update={"decision": OneLabelRecord(temperature=2.5)}))
    folder = tmp_path / "export"
    options = ExportOptions(format="onnx" if form == "onnx" else "safetensors", precision="fp32")
    assert export_run(copy, folder, options).decision == OneLabelRecord(temperature=2.5)
    precision = None if form == "linear" else "fp32"
    classifier, original = Classifier.from_export(folder), Classifier.from_run(copy, precision=precision)
    expected = softmax(original.logits(TEXTS).astype(np.float64) / 2.5, axis=1)
    for found in (classifier, original):
        np.testing.assert_allclose(found.predict_proba(TEXTS), expected, atol=1e-4)
        assert found.predict(TEXTS).tolist() == original.classes_[expected.argmax(axis=1)].tolist()
    assert "divided by the temperature 2.5" in (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_an_accelerator_computes_fp16_in_fp16(exports: dict[str, Any]) -> None:
    classifier = Classifier.from_export(exports["fp16"][0])
    how = classifier.computation
    assert how is not None
    assert (how.storage_precision, how.compute_precision, how.device) == ("fp16", "fp16", "cuda")
    whole = Classifier.from_export(exports["fp16"][0], precision="fp32")
    assert np.mean(classifier.predict(TEXTS) == whole.predict(TEXTS)) > 0.95


def test_the_stock_tools_read_the_model_and_give_its_labels_and_scores(run: Path, exports: dict[str, Any]) -> None:
    for opened, folder in ((run, run / "model"), (exports["fp32"][0],) * 2):
        classifier = Classifier.open(opened, precision="fp32")
        answers = pipeline("text-classification", model=str(folder), device="cpu")(clean_texts(TEXTS), batch_size=7)
        assert [answer["label"] for answer in answers] == classifier.predict(TEXTS).tolist()
        # They know of no temperature.
        scores = softmax(classifier.logits(TEXTS), axis=1).max(axis=1)
        assert [answer["score"] for answer in answers] == pytest.approx(scores.tolist(), abs=1e-4)
        assert AutoTokenizer.from_pretrained(folder).model_max_length == 24


def test_what_a_smaller_vocabulary_costs_is_held_against_the_run(run: Path, tmp_path: Path, command: Command) -> None:
    said = command("export", run, "--vocabulary", 70, "--output", tmp_path / "out")
    check = read_export(tmp_path / "out").check
    split = recorded_split(read_record(run), "validation", None)
    before, after = (Classifier.open(folder).predict(split.texts) for folder in (run, tmp_path / "out"))
    truth = np.array(read_record(run).data.label_names)[split.labels]
    assert (check.reference_accuracy, check.accuracy) == ((before == truth).mean(), (after == truth).mean())
    assert check.label_agreement == (before == after).mean() < 0.9
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"| {check.accuracy:.4f}, the run's model {check.reference_accuracy:.4f} |" in card
    kept = f"with the smaller vocabulary the export keeps {check.label_agreement:.2%} of the run's labels and loses "
    assert kept in said.err and "with the whole one fp32 is to keep 99.9%; keep more pieces" in said.err


def test_the_card_shows_the_records_figures_and_what_failed_harmlessly(run: Path, copy: Path, tmp_path: Path) -> None:
    record = read_record(run)
    failed = AuditResult(name="leakage.exact.test", status="failed", summary="half | of <script>it</script>")
    data = record.data.model_copy(update={"notes": ["# not a [heading](x)\n\n|"], "label_names": ["a|b", "*c*"]})
    write_record(copy, record.model_copy(update={"audits": [*record.audits[1:], failed], "data": data}))
    manifest = export_run(copy, tmp_path / "out", ExportOptions(precision="fp16"))
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    for name, metrics in record.metrics.items():
        low, high = metrics.accuracy_interval
        assert f"| {metrics.accuracy:.4f} | {low:.4f} to {high:.4f} |" in card
        assert record.data.splits[name].fingerprint not in card and record.data.fingerprint in card
    for audit in record.audits[1:]:
        assert audit.name in card.replace("\\_", "_")
    assert f"{100 * manifest.check.label_agreement:.2f} % of rows" in card
    assert f"{record.model.parameters:,}" in card and f"| {amount(record.model.flops_per_token)} |" in card
    assert f"{manifest.files['model.safetensors'].size_bytes / 2**20:.2f} MiB" in card
    assert manifest.check.computation.describe() in card
    for heading in ("Use", "Data", "Training", "Metrics of the run", "Audits of the run", "Intended use", "Limits"):
        assert f"\n## {heading}\n" in card
    assert "| leakage.exact.test | **FAILED** | half \\| of &lt;script&gt;it&lt;/script&gt; |" in card
    assert "* The audit leakage.exact.test failed: half \\|" in card
    assert "\n* # not a \\[heading\\](x) \\|\n" in card
    assert "a\\|b" in card and "\\*c\\*" in card and "<script>" not in card


def test_an_output_that_touches_the_run_or_other_files_is_refused(
    run: Path, exports: dict[str, Any], tmp_path: Path
) -> None:
    before = snapshot(run.parent)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter.txt").write_text("dear")
    (tmp_path / "link").symlink_to(run)
    for output, said in (
        (run, "is the run itself"),
        (run / "model", "one inside the other"),
        (run / "deeper" / "out", "one inside the other"),
        (tmp_path / "link" / "out", "one inside the other"),
        (run.parent, "one inside the other"),
        (mine, "has files but no export.json, and is not replaced"),
        (mine / "letter.txt", "is a file"),
    ):
        with pytest.raises(StorageError, match="choose") as caught:
            export_run(run, output, ExportOptions(overwrite=True))
        assert said in str(caught.value)
    with pytest.raises(StorageError, match="is there already"):
        export_run(run, mine)
    assert snapshot(run.parent) == before and snapshot(mine) == {"letter.txt": b"dear"}
    with pytest.raises(CheckpointError, match="is an export, not a run; give the run"):
        export_run(exports["fp32"][0], tmp_path / "out")
    with pytest.raises(CheckpointError, match="is an export, not a run"):
        Classifier.from_run(exports["fp32"][0])
    with pytest.raises(CheckpointError, match="is not an export"):
        Classifier.from_export(run)


def test_weights_that_are_damaged_or_that_fp16_cannot_hold_give_no_export(copy: Path, tmp_path: Path) -> None:
    path = copy / "model" / "model.safetensors"
    weights = load_file(path)
    weights["model.core.block.layers.0.feed_forward.down_proj.bias"][3] = 1e5
    save_file(weights, path, metadata={"format": "pt"})
    seal_model(copy)
    with pytest.raises(AuditError, match=r"down_proj\.bias' has values that fp16 cannot hold; nothing was written"):
        export_run(copy, tmp_path / "out", ExportOptions(precision="fp16"))
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    export_run(copy, tmp_path / "out", ExportOptions(precision="bf16"))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="truncated or changed"):
        export_run(copy, tmp_path / "again")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}
    with pytest.raises(CheckpointError, match="does not exist; give a folder made by 'recurra train'"):
        export_run(tmp_path / "nothing", tmp_path / "out")


def test_an_export_that_computes_something_else_is_not_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = formats.write_safetensors

    def spoil(source: Any, precision: str, folder: Path) -> None:
        write(source, precision, folder)
        weights = load_file(folder / "model.safetensors")
        weights["classifier.weight"] = weights["classifier.weight"].flip(0)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    monkeypatch.setattr(formats, "write_safetensors", spoil)
    with pytest.raises(AuditError, match="the fp32 export disagrees with the run's model"):
        export_run(run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def linear_runs(linear_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each linear model, the static one on a vocabulary and vectors of its own, and one of any labels."""
    root = tmp_path_factory.mktemp("linear")
    several = [(text, f"{label};seen" if "film" in text else label) for text, label in review_rows()]
    words = ["train", "--model", "linear", "--data", str(write_csv(root / "several.csv", several)), "--no-latency"]
    assert main([*words, "data.label_separator=;", "--output", str(root / "several"), "--quiet"]) == 0
    texts, labels = zip(*review_rows(), strict=True)
    truth = np.array([label == "positive" for label in labels], dtype=np.int64)
    tokenizer = wordpiece(train_wordpiece(texts, 200))
    vectors = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 8)).astype(np.float32)
    for name, model in {
        "tuned": fit_tuned(texts, truth), "static": fit_static(texts, truth, vectors, tokenizer, encoder="tiny"),
    }.items():  # fmt: skip
        shutil.copytree(linear_run, root / name)
        shutil.rmtree(root / name / "model")
        model.save(root / name / "model")
        seal_model(root / name)
    return {"linear": linear_run, **{name: root / name for name in ("tuned", "static", "several")}}


@pytest.mark.parametrize("form", ["safetensors", "onnx"])
@pytest.mark.parametrize("name", ["linear", "tuned", "static", "several"])
def test_a_linear_model_is_exported(name: str, form: str, linear_runs: dict[str, Path], tmp_path: Path) -> None:
    folder, run = tmp_path / "out", linear_runs[name]
    manifest = export_run(run, folder, ExportOptions(form))
    weights = {LINEAR_NAME} if form == "safetensors" else {"model.onnx", *(["tokenizer.json"] * (name == "static"))}
    assert {path.name for path in folder.iterdir()} == {*weights, "run-record.json", "README.md", "export.json"}
    assert read_export(folder) == manifest and not needs_torch(folder) and not needs_torch(run)
    assert (manifest.kind, manifest.format, manifest.precision) == ("linear", form, "fp32")
    assert manifest.check.rows == 24 and manifest.check.label_agreement == 1 and manifest.check.accuracy is not None
    assert manifest.check.largest_logit_difference <= (0 if form == "safetensors" else 1e-6)
    assert manifest.check.computation.engine == {"safetensors": "scikit-learn", "onnx": "onnxruntime"}[form]
    found, reference = Classifier.open(folder), Classifier.from_run(run)
    assert found.predict(TEXTS).tolist() == reference.predict(TEXTS).tolist() and found.engine.depth is None
    card = (folder / "README.md").read_text(encoding="utf-8")
    usage = {"safetensors": "not torch or transformers", "onnx": "runs of letters and digits"}[form]
    assert usage in card and "A text is read to its end" in card
    assert "are cut" not in card and "stock classes" not in card and "epochs," not in card


def test_what_a_linear_model_cannot_have_is_refused(linear_run: Path, tmp_path: Path) -> None:
    run, folder = Path(shutil.copytree(linear_run, tmp_path / "run")), tmp_path / "out"
    for options, said in (
        (ExportOptions("onnx", "int8"), "its weights are stored in fp32; leave --precision int8 out"),
        (ExportOptions(vocabulary=0), "no token table to make smaller; leave --vocabulary 0 out"),
        (ExportOptions(agreement=0.9), "it has no exits; leave --agreement 0.9 out"),
    ):
        with pytest.raises(ConfigurationError, match=f"is a linear model.*{said}"):
            export_run(run, folder, options)
    assert not folder.exists()
    export_run(run, folder)
    for opened in (folder, run):
        with pytest.raises(ConfigurationError, match="computed in fp64, not in bf16; leave precision out"):
            Classifier.open(opened, precision="bf16")
    for path in (folder / LINEAR_NAME, run / "model" / LINEAR_NAME):
        content = bytearray(path.read_bytes())
        content[-4] ^= 1
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match="was changed after the export was made"):
        Classifier.open(folder)
    with pytest.raises(CheckpointError, match="was changed after the run was made"):
        export_run(run, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def engine(special: list[str] | None = None) -> TransformerEngine:
    """With a vocabulary that was learned on more than the training rows."""
    others = [text for text, _ in review_rows(60, seed=3)]
    pieces = train_wordpiece([*TRAIN, *others, "unbelievable", "unbelievable", "believers", "believers"], 400)
    if special:
        # Special tokens in the middle, as in BERT's released vocabulary.
        plain = [piece for piece in pieces if piece not in special]
        pieces = {piece: number for number, piece in enumerate([*plain[:7], *special, *plain[7:]])}
    tokenizer = as_transformers(wordpiece(pieces))
    model = stirred(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, pooling="mean")
    return TransformerEngine(model, tokenizer, precision="fp32", max_length=24)


@pytest.mark.parametrize("special", [None, ["[SEP]", "[CLS]", "[UNK]", "[PAD]", "[MASK]"]])
def test_texts_of_known_pieces_are_cut_and_answered_as_before(special: list[str] | None) -> None:
    before = engine(special)
    after = trim(before, TRAIN, None)
    assert len(after.tokenizer) < len(before.tokenizer) and after.model.config.vocab_size == len(after.tokenizer)
    for text in TRAIN:
        assert after.tokenizer.tokenize(text) == before.tokenizer.tokenize(text)
    np.testing.assert_allclose(after.logits(TRAIN, 8), before.logits(TRAIN, 8), rtol=1e-5, atol=1e-6)
    # A fresh table of other ids: what was given is untouched.
    assert before.model.get_input_embeddings().num_embeddings == len(before.tokenizer)
    ids = after.tokenizer("unbelievable")["input_ids"]
    assert ids[0] == after.tokenizer.cls_token_id and ids[-1] == after.tokenizer.sep_token_id


@given(text=st.text(st.sampled_from("abelivnsruy 0123"), max_size=30))
def test_nothing_becomes_unknown_that_was_not(text: str) -> None:
    before, after = ENGINES
    known = before.tokenizer.unk_token not in before.tokenizer.tokenize(text)
    pieces = after.tokenizer.tokenize(text)
    assert not known or after.tokenizer.unk_token not in pieces
    if known:
        joined = "".join(piece.removeprefix("##") for piece in pieces)
        assert joined == text.replace(" ", "")


ENGINES = (engine(), trim(engine(), TRAIN, 100))


def test_the_most_frequent_pieces_stay() -> None:
    whole, smaller = ENGINES
    assert len(smaller.tokenizer) == 100
    assert {"the", "number", "was", "and", "too"} <= set(smaller.tokenizer.get_vocab())
    everything = len(whole.tokenizer)
    for most, kept in ((150, 150), (everything, everything), (10**6, everything)):
        assert len(trim(whole, TRAIN, most).tokenizer) == kept
    with pytest.raises(ConfigurationError, match="5 pieces are to be kept, but single characters"):
        trim(whole, TRAIN, 5)
    bpe = Tokenizer(models.BPE({"a": 0, "[PAD]": 1}, []))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="[PAD]")
    with pytest.raises(ConfigurationError, match="the tokenizer is a BPE"):
        trim(TransformerEngine(tiny_model(), tokenizer, precision="fp32", max_length=24), TRAIN, None)


def test_of_the_released_vocabulary_every_character_stays(data_root: Path) -> None:
    vocabulary = read_vocabulary(data_root / "tokenizers" / "bert-base-uncased" / "vocab.txt")
    tokenizer = as_transformers(wordpiece(vocabulary))
    whole = TransformerEngine(
        tiny_model(vocab_size=len(tokenizer), pad_token_id=0), tokenizer, precision="fp32", max_length=24
    )
    smaller = trim(whole, TRAIN, None)
    assert 1994 < len(smaller.tokenizer) < 2100
    assert "[UNK]" not in smaller.tokenizer.tokenize("Zyzzyva's naïve façade 東京 42 %")
