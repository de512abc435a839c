"""SetFit as a peer: what its package trained is what our model says; the run, its record, and what is refused."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from sklearn.linear_model import LogisticRegression
from transformers import AutoTokenizer, BertModel

import recurra.training.setfit as method
from recurra import Classifier
from recurra.core.errors import ConfigurationError, UnavailableError
from recurra.core.record import RunRecord, read_record
from recurra.data.configuration import DataConfig, MultiLabelData
from recurra.data.corpora import recorded_split
from recurra.data.encoding import encode_split
from recurra.study.run import execute_run
from recurra.tasks.base import RunConfig
from recurra.tasks.runs import make_run, resolve_model
from recurra.tasks.study_data import Machine, StudyData
from recurra.training.protocols import PROTOCOLS
from reviews import Command, review_rows, write_reviews

ROWS = 8


def configured(root: Path, max_epochs: int = 3, max_length: int = 24, windows: int = 1, **keys: Any) -> RunConfig:
    """A run of the encoder trained by SetFit."""
    model = root / "model.yaml"
    model.write_text(yaml.safe_dump({"encoder": str(root / "encoder"), "method": "setfit", **keys}), encoding="utf-8")
    data = DataConfig(name=str(root / "reviews.csv"), rows_per_label=ROWS, max_length=max_length, windows=windows)
    protocol = PROTOCOLS["finetune-few"].model_copy(update={"max_epochs": max_epochs, "curriculum_epochs": 2})
    return make_run(str(model), data, protocol, seed=0, precision="fp32")


def execute(config: RunConfig, folder: Path, root: Path) -> RunRecord:
    found = execute_run(StudyData(Machine(cache_dir=root / "cache", latency=False, threads=1)), folder, config)
    assert isinstance(found, RunRecord)
    return found


def test_a_run_says_what_the_package_trained(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Any] = []

    def keeping(*args: Any, **keys: Any) -> Any:
        found = package(*args, **keys)
        trained.append(({name: values.clone() for name, values in found[0].items()}, found[1]))
        return found

    package = method._train
    monkeypatch.setattr(method, "_train", keeping)
    record = execute(configured(root), tmp_path / "run", root)
    [(weights, head)] = trained

    # Transformers' encoder, mean token states, scikit-learn's regression: nothing of ours.
    encoder = BertModel.from_pretrained(root / "encoder").eval()
    start = {name: values.clone() for name, values in encoder.state_dict().items()}
    encoder.load_state_dict(weights)
    tokenizer = AutoTokenizer.from_pretrained(root / "encoder")
    texts = ["a good film", "no idea", "the plot is dull and it is long", "fine"]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    wanted = head.predict_proba(((states * mask).sum(1) / mask.sum(1)).numpy())
    found = Classifier.from_run(tmp_path / "run")
    logits = found.logits(texts)
    said = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(said, wanted, atol=1e-5)
    moved = max(float((weights[name] - values).abs().max()) for name, values in start.items())
    assert moved > 1e-4

    train = record.data.splits["train"]
    assert train.rows == 2 * ROWS and set(train.label_counts.values()) == {ROWS}
    assert record.training.steps == method.steps_for(2 * ROWS) == 40 and record.training.epochs == 1
    assert record.training.history == [] and record.config["protocol"]["max_epochs"] == 1
    assert record.model.description == f"the encoder {root / 'encoder'}, trained by SetFit {method.version()}"
    # What the protocol says of epochs is not the package's: another number is the same run, and not run again.
    again = execute(configured(root, max_epochs=99), tmp_path / "run", root)
    assert again.run_id == record.run_id and len(trained) == 1


@pytest.mark.parametrize(("classes", "present"), [(2, [0, 1]), (3, [0, 1, 2]), (4, [0, 2, 3]), (3, [0, 2])])
def test_the_head_is_the_regression(classes: int, present: list[int]) -> None:
    dice = np.random.default_rng(0)
    labels = np.resize(present, 40)
    states = dice.normal(size=(40, 6)) + labels[:, None]
    regression = LogisticRegression(max_iter=1_000).fit(states, labels)
    linear = torch.nn.Linear(6, classes)
    method._set_head(linear, regression)
    with torch.no_grad():
        found = linear(torch.from_numpy(states).float()).softmax(-1).numpy()
    np.testing.assert_allclose(found[:, present], regression.predict_proba(states), atol=1e-5)
    assert found[:, [label for label in range(classes) if label not in present]].sum() < 1e-3
    assert np.isfinite(np.log(found)).all()


def test_each_row_is_in_forty_pairs_until_the_steps_are_bounded() -> None:
    for rows, steps in ((2, 5), (3, 8), (16, 40), (400, 1_000), (40_000, 1_000)):
        assert method.steps_for(rows) == steps
        assert method.reads_of_a_row(rows) == pytest.approx(2 * 16 * steps / rows)


def test_every_window_of_a_text_fits_the_regression_and_of_many_some_are_paired(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from setfit import Trainer

    given: dict[str, tuple[list[str], list[int]]] = {}

    def telling(name: str) -> Any:
        whole = getattr(Trainer, name)

        def part(self: Any, texts: list[str], labels: list[int], **keys: Any) -> Any:
            given[name] = texts, labels
            return whole(self, texts, labels, **keys)

        return part

    for name in ("train_embeddings", "train_classifier"):
        monkeypatch.setattr(Trainer, name, telling(name))
    monkeypatch.setattr(method, "MOST_PAIRED_ROWS", ROWS)
    record = execute(configured(root, max_length=6, windows=4), tmp_path / "run", root)
    tokenizer = AutoTokenizer.from_pretrained(root / "encoder")
    windows = encode_split(recorded_split(record, "train", None), tokenizer, 6, windows=4)
    texts, labels = given["train_classifier"]
    assert len(texts) > 2 * ROWS and labels == windows.labels.tolist()
    assert [tokenizer(text)["input_ids"] for text in texts] == [
        windows[row]["input_ids"].tolist() for row in range(len(windows))
    ]
    paired = method.paired_rows(len(texts), 0)
    assert len(paired) == ROWS
    assert given["train_embeddings"] == ([texts[row] for row in paired], [labels[row] for row in paired])


def test_what_does_not_go_with_it_is_refused(root: Path, tmp_path: Path) -> None:
    keys: dict[str, Any]
    for keys, message in (
        ({"method": "setfitt"}, "did you mean 'setfit'"),
        ({"plan": "0 (1)x2 3"}, "'plan' is '0 (1)x2 3', but method 'setfit'"),
        ({"teacher": "runs/x"}, "'teacher' is 'runs/x', but method 'setfit'"),
        ({"low_rank": 3}, "'low_rank' is '3', but method 'setfit'"),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(message)):
            configured(root, **keys)
    data = DataConfig(name=str(root / "reviews.csv"))
    (tmp_path / "model.yaml").write_text("method: setfit\nhidden_size: 16\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="without an encoder to apply it to"):
        make_run(str(tmp_path / "model.yaml"), data, PROTOCOLS["tuned"], seed=0, precision="fp32")
    small = {"name": "small", "encoder": "recurra-small", "method": "setfit"}
    config = make_run(small, data, PROTOCOLS["finetune-few"], seed=0, precision="fp32")
    with pytest.raises(ConfigurationError, match="whose weights are not 8-bit integers"):
        execute(config, tmp_path / "small", root)
    several = MultiLabelData(name=str(root / "reviews.csv"), label_separator=";")
    with pytest.raises(ConfigurationError, match="one label a text, these data have several"):
        make_run("setfit", several, PROTOCOLS["finetune-few"], seed=0, precision="fp32")


def test_the_package_is_asked_for_before_anything_runs(
    root: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    assert resolve_model("setfit") == ("setfit", {"encoder": "minilm", "method": "setfit"})
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "setfit" else there(name, *rest)
    )
    with pytest.raises(UnavailableError, match=r"pip install 'recurra\[peers\]'"):
        execute(configured(root), root / "never", root)
    assert not (root / "never" / "record.json").exists()
    train = ["train", "--model", "setfit", "--data", root / "reviews.csv", "--output", root / "never", "--quiet"]
    assert "recurra[peers]" in command(*train, code=2).err


@pytest.mark.slow
def test_a_comparison_of_few_rows_holds_it_and_a_taught_bag_of_words_against_the_others(
    root: Path, tmp_path: Path, command: Command
) -> None:
    write_reviews(tmp_path / "few.csv", rows=40)
    more = tmp_path / "more.txt"
    more.write_text("\n".join(text for text, _ in review_rows(60, seed=9)), encoding="utf-8")
    compare = ["compare", tmp_path / "few.csv", "--output", tmp_path / "runs", "--quiet", "--folds", 1]
    compare += ["--from", root / "encoder", "--plan", "0 (1)x2 3", "--workers", 1, "--threads", 1]
    compare += ["data.max_length=24", "max_epochs=1", "--no-latency", "--no-final", "--unlabelled", more, "--json"]
    (table,) = command(*compare).json["tables"]
    found = {model["label"]: model for model in table["models"]}
    by_encoder = {"encoder-and-words", "encoder", "encoder-small", "encoder-setfit"}
    assert set(found) == {"linear-tuned", "linear-taught", *by_encoder}
    assert found["linear-taught"]["description"].endswith("on a teacher's answers")
    assert "trained by SetFit" in found["encoder-setfit"]["description"] and table["training"] == "finetune-few"
    for label, model in found.items():
        # A teacher is trained before its student, which comes first in the alphabet.
        teacher = read_record(Path(model["runs"][0]["folder"])).teacher
        assert (teacher is not None) == (label in ("linear-taught", "encoder-small"))
        assert teacher is None or "-encoder-finetune-few-" in teacher.runs[0]
        assert teacher is None or teacher.compares_states == (label == "encoder-small")
    # Another teacher is looked for before anything is trained. The last `--output` counts.
    said = command(*compare, "--output", tmp_path / "other", "--teacher", tmp_path / "nobody", code=2).err
    assert "nobody' is neither a run" in said
