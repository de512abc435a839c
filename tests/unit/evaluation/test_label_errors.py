"""Doubtful labels: planted errors come first, judged without their label; suspects are more likely wrong than right."""

from __future__ import annotations

import hashlib
import itertools
import math
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertModel

from recurra.core.errors import UnavailableError
from recurra.core.progress import Reporter
from recurra.data.cleaning import CAREFUL
from recurra.data.configuration import DataConfig
from recurra.data.parquet import read_parquet_table
from recurra.evaluation import label_errors
from recurra.evaluation.encoder_states import cached_states, mean_states
from recurra.evaluation.label_errors import NO_ENCODER, LabelErrors, find_label_errors, wrong_labels
from recurra.models.adaptation.source import find_encoder
from recurra.models.controls import STATES_TOKENS
from recurra.models.controls.fitting import out_of_fold_probabilities
from reviews import Command, read_rows, write_csv
from tiny_encoder import write_tiny_encoder

WORDS = {
    "food": ["soup", "bread", "noodles", "sauce", "dessert", "salad"],
    "cars": ["engine", "brakes", "tyres", "gearbox", "clutch", "diesel"],
    "books": ["chapter", "novel", "author", "plot", "poem", "preface"],
}
NAMES = list(WORDS)


def _planted(path: Path, rows: int = 240, wrong: int = 12) -> tuple[Path, set[int]]:
    """A file of three topics, and the lines whose label is that of another topic."""
    rng = np.random.default_rng(0)
    bad = set(rng.choice(rows, wrong, replace=False).tolist())
    texts = [f"{' '.join(rng.choice(WORDS[NAMES[row % 3]], 3).tolist())} number {row}" for row in range(rows)]
    labels = [NAMES[(row + (row in bad)) % 3] for row in range(rows)]
    return write_csv(path, list(zip(texts, labels, strict=True))), {row + 2 for row in bad}


def test_planted_errors_lead_the_list_with_the_right_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    path, bad = _planted(tmp_path / "topics.csv")
    found = find_label_errors(DataConfig(name=str(path)), encoder=NO_ENCODER)
    rows = list(found)
    assert len(rows) == len(found) == 240 and sorted(row.place for row in rows) == list(range(2, 242))
    assert {row.place for row in rows[: len(bad)]} == bad
    for row in rows[: len(bad)]:
        assert row.suspect and row.suggested == NAMES[(row.place - 2) % 3] != row.label
        assert row.probability > 0.5 > row.label_probability
    doubt = [row.wrong_probability for row in rows]
    assert doubt == sorted(doubt, reverse=True)
    assert found.agreement == pytest.approx(1 - len(bad) / 240)
    # The command shows and writes them.
    output = tmp_path / "doubts.csv"
    answer = command("label-errors", path, "--from", "none", "--top", 12, "--output", output, "--json").json
    assert (answer["rows"], answer["output"]) == (240, str(output))
    assert [row["line"] for row in answer["top"]] == [row.place for row in rows[:12]]
    assert answer["agreement"] == found.agreement and answer["chance"] < 0.4 < answer["macro_f1"]
    written = read_rows(output)
    header = "line,label,suggested,label_probability,probability,wrong_probability,suspect,text"
    assert [*written[0]] == header.split(",")
    assert [int(row["line"]) for row in written] == [row.place for row in rows]
    assert sum(row["suspect"] == "true" for row in written) == answer["suspects"]
    # All rows are judged at once: a judgement of all for each row takes minutes in a large file.
    asked = []
    monkeypatch.setattr(LabelErrors, "suspects", property(lambda rows: asked.append(1) or rows.wrong > 0.5))
    assert list(found) == rows and len(asked) == 1


def _judged(rng: np.random.Generator, rows: int, classes: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of a judge, and labels drawn by them: it is calibrated, the surer the larger the scale."""
    logits = rng.normal(size=(rows, classes)) * scale
    logits -= logits.max(axis=1, keepdims=True)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    drawn = rng.uniform(size=(rows, 1)) > probabilities.cumsum(axis=1)
    return probabilities, np.minimum(drawn.sum(axis=1), classes - 1)


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("share", [0.05, 0.2])
def test_as_many_labels_are_wrong_as_is_said(classes: int, share: float) -> None:
    rng = np.random.default_rng(classes)
    probabilities, truth = _judged(rng, 4_000, classes, 8.0)
    labels, bad = truth.copy(), rng.permutation(4_000)[: int(4_000 * share)]
    labels[bad] = (labels[bad] + rng.integers(1, classes, len(bad))) % classes
    wrong, found = wrong_labels(probabilities, labels)
    is_bad = np.isin(np.arange(4_000), bad)
    assert found == pytest.approx(share, rel=0.15)
    assert wrong.sum() == pytest.approx(len(bad), rel=0.15)
    for rows in (wrong <= 0.5, wrong > 0.5):
        assert rows.any() and wrong[rows].mean() == pytest.approx(is_bad[rows].mean(), abs=0.06)


@pytest.mark.parametrize("scale", [0.5, 2.0, 8.0])
def test_a_judge_that_errs_calls_no_right_label_wrong(scale: float) -> None:
    rng = np.random.default_rng(3)
    disagreeing, doubted = 0, 0
    for _ in range(8):
        probabilities, labels = _judged(rng, 1_000, 3, scale)
        wrong, _ = wrong_labels(probabilities, labels)
        disagreeing += int((probabilities.argmax(axis=1) != labels).sum())
        doubted += int((wrong > 0.5).sum())
    # Confident learning doubts tens of rows in each.
    assert disagreeing > 400 and doubted < disagreeing / 100


def test_states_judge_beside_the_words() -> None:
    # Words say nothing and states tell the labels but for some planted errors, which must lead.
    rng = np.random.default_rng(2)
    texts = [" ".join(rng.choice(500, 8).astype(str).tolist()) for _ in range(300)]
    truth = rng.integers(0, 3, 300)
    states = (np.eye(3)[truth] * 4 + rng.normal(size=(300, 3))).astype(np.float32)
    labels = truth.copy()
    bad = rng.choice(300, 15, replace=False)
    labels[bad] = (labels[bad] + 1) % 3
    alone, _ = out_of_fold_probabilities(texts, labels, num_labels=3)
    both, model = out_of_fold_probabilities(texts, labels, num_labels=3, states=states)
    assert "TF-IDF" in model and "mean token states + logistic regression" in model
    doubted = [np.argsort(found[np.arange(300), labels])[:15] for found in (alone, both)]
    assert np.isin(bad, doubted[0]).mean() < 0.4 < 0.9 <= np.isin(bad, doubted[1]).mean()
    assert (both.argmax(axis=1) == truth).mean() > 0.9
    np.testing.assert_allclose(both.sum(axis=1), 1)


def test_states_are_the_means_of_transformers(tmp_path: Path) -> None:
    texts = ["a good film", "no idea", "", "the plot is dull and " * 120, "fine"] * 9
    folder = write_tiny_encoder(tmp_path / "encoder", texts)
    found = mean_states(find_encoder(str(folder)), texts, Reporter(quiet=True))
    encoder, tokenizer = BertModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    limit = encoder.config.max_position_embeddings
    batch = tokenizer(texts, padding=True, truncation=True, max_length=min(STATES_TOKENS, limit), return_tensors="pt")
    with torch.no_grad():
        states = encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    np.testing.assert_allclose(found, ((states * mask).sum(1) / mask.sum(1)).numpy(), atol=1e-5)


def test_each_text_keeps_its_own_state_in_the_cache_whatever_its_digest(tmp_path: Path) -> None:
    def is_nan(text: str) -> bool:
        return math.isnan(struct.unpack("<d", hashlib.sha256(text.encode("utf-8")).digest()[:8])[0])

    # As floats, the digests of these two would both be NaN.
    texts = list(itertools.islice(filter(is_nan, map("text {}".format, itertools.count())), 2))
    encoder = find_encoder(str(write_tiny_encoder(tmp_path / "encoder", texts * 5)))
    wanted = mean_states(encoder, texts, Reporter(quiet=True))
    for _ in range(2):
        found = cached_states(encoder, texts, Reporter(quiet=True), data="toy", precision="fp32", cache_dir=tmp_path)
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert np.abs(wanted[0] - wanted[1]).max() > 1e-3


def test_an_encoder_is_asked_if_it_is_there_and_the_file_is_no_burden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    path, bad = _planted(tmp_path / "topics.csv")
    folder = str(write_tiny_encoder(tmp_path / "encoder", path.read_text(encoding="utf-8").splitlines()))
    config = DataConfig(name=str(path))
    asked = find_label_errors(config, encoder=folder)
    assert "mean token states" in asked.model and asked.notes == []
    assert {row.place for row in itertools.islice(asked, len(bad))} == bad

    there = label_errors.find_encoder
    monkeypatch.setattr(label_errors, "find_encoder", lambda name: there(folder if name == "minilm" else name))
    assert find_label_errors(config).model == asked.model
    monkeypatch.setattr(label_errors, "MOST_ROWS_UNASKED", 239)
    unasked = find_label_errors(config)
    assert "states" not in unasked.model and "--from minilm uses it" in unasked.notes[-1]

    def missing(name: str) -> None:
        raise UnavailableError(f"no {name} here")

    monkeypatch.setattr(label_errors, "MOST_ROWS_UNASKED", 240)
    monkeypatch.setattr(label_errors, "find_encoder", missing)
    without = find_label_errors(config)
    assert without.model == unasked.model
    assert without.notes[-1] == "without a pretrained encoder, which finds more: no minilm here"
    assert command("label-errors", path, "--from", "minilm", code=2).err.endswith("no minilm here\n")


def test_texts_are_as_written_whatever_cleaning_leaves_out_and_no_lone_label_is_called_wrong(tmp_path: Path) -> None:
    path, bad = _planted(tmp_path / "topics.csv")
    lines = [line.replace(" ", "  ", 1) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    rows = [f"i{number},{line}" for number, line in enumerate(lines)]
    rows += ["i0,<br/>,", *(f"own{number},An odd thing,other" for number in range(20)), "one,Quite alone,single"]
    path.write_text("\n".join(["id,text,label", *rows, ""]), encoding="utf-8")
    found = find_label_errors(DataConfig(name=str(path), clean=CAREFUL, id_column="id"), encoder=NO_ENCODER)
    by_place = {row.place: row for row in found}
    assert [by_place[place].text for place in (2, 243)] == [lines[0].split(",")[0], "An odd thing"]
    # Its judge is sure of another label, which must not make the judge of all others seem a poor one.
    assert bad == {row.place for row in found if row.suspect}
    assert {row.place for row in list(found)[-21:]} == {*range(243, 264)}
    assert any(note.startswith("21 rows have a label that no other text has") for note in found.notes)


def test_what_cannot_be_meant_is_one_line(tmp_path: Path, command: Command) -> None:
    path, _ = _planted(tmp_path / "topics.csv", rows=30, wrong=1)
    for words, message in (
        (["demo"], "'demo' is a corpus"),
        (["wikitext-2"], "'wikitext-2' is running text; give a labelled file"),
        ([path, "fraction=0.5"], "'fraction' has no meaning here"),
        ([path, "data.clen=0"], "did you mean 'clean'?); allowed: text_column"),
        ([path, "--output", "doubts.parquet"], "allowed: .csv"),
        ([path, "--output", path], "is the input itself"),
        ([path, "data.label_separator=;"], "several labels a row"),
    ):
        error = command("label-errors", *words, code=2).err
        assert message in error and error.count("\n") == 1


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(("encoder", "measured"), [("none", 0.86), ("minilm", 0.95)])
def test_a_tenth_of_the_list_holds_most_planted_errors(
    tmp_path: Path, data_root: Path, encoder: str, measured: float
) -> None:
    """The figures of docs/how-to/own-data.md: 3,000 real rows, 5 % with another label by chance."""
    table = read_parquet_table(data_root / "yelp_sentences/upstream_dev.parquet", ["text", "label"])
    columns, rng = table.to_pydict(), np.random.default_rng(0)
    rows = rng.permutation(len(columns["text"]))[:3_000].tolist()
    names = sorted({str(columns["label"][row]) for row in rows})
    labels = np.array([names.index(str(columns["label"][row])) for row in rows])
    bad = rng.choice(len(rows), len(rows) // 20, replace=False)
    labels[bad] = (labels[bad] + rng.integers(1, len(names), len(bad))) % len(names)
    path = write_csv(
        tmp_path / "real.csv", [(columns["text"][row], names[label]) for row, label in zip(rows, labels, strict=True)]
    )
    found = list(find_label_errors(DataConfig(name=str(path)), encoder=encoder))
    first = {row.place for row in found[: len(found) // 10]}
    assert np.mean([row + 2 in first for row in bad.tolist()]) == pytest.approx(measured, abs=0.03)
