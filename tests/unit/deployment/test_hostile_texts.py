"""Any string as a text: cleaned, tokenised and classified, or refused in one line that does not show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra import Classifier
from recurra.core.errors import DataError
from recurra.data.cleaning import clean_text
from recurra.deployment.export.build import export_run
from recurra.deployment.export.manifest import ExportOptions

# Every character there is, the halves of surrogate pairs among them.
ANYTHING = st.characters(exclude_categories=())
PIECES = [
    "\0", "\x1b[31m", "\u202e", "\u2066", "\u200d", "\ufe0f", "\U0001f469\u200d\U0001f680", "\U0001f1e9\U0001f1ea",
    "\u05e9\u05dc\u05d5\u05dd", "e\u0301\u0301", "\ufeff", "\ufffe", "\u2028", "<b", "</", "<!--", "http://", "WWW.",
    "!!", "??", "...", "\u0130", "\u1e9e", "\u03a3", "\u6f22", "[CLS]", "[SEP]", "[PAD]", "##", " ", "\t", "great",
]  # fmt: skip
TEXTS = st.one_of(
    st.text(ANYTHING, max_size=40),
    st.lists(st.sampled_from(PIECES) | st.text(ANYTHING, max_size=3), max_size=12).map("".join),
)
# Pieces and how often: each stays one word, or becomes many tokens, which takes longest, or is all marks.
ENDLESS = {
    "letters": ("x", 10**6), "emoji": ("\U0001f469\u200d", 500_000), "combining": ("\u0301", 10**6),
    "right to left": ("\u05e9", 10**6), "NUL": ("\0", 10**6), "addresses": ("www.", 250_000),
    "ideographs": ("\u6f22", 200_000), "marks": ("!?", 100_000), "open tags": ("<b", 100_000),
}  # fmt: skip


@pytest.fixture(scope="module")
def classifiers(
    run: Path, linear_run: Path, onnx_exports: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Classifier]:
    linear_onnx = tmp_path_factory.mktemp("hostile") / "linear-onnx"
    export_run(linear_run, linear_onnx, ExportOptions("onnx", "fp32"))
    return {
        "onnx": Classifier.open(onnx_exports["fp32"], threads=1),
        "torch": Classifier.open(run, precision="fp32"),
        "linear": Classifier.open(linear_run),
        "linear-onnx": Classifier.open(linear_onnx, threads=1),
    }


def is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


@given(TEXTS)
def test_cleaning_takes_any_string_and_is_done_once(text: str) -> None:
    cleaned = clean_text(text)
    assert clean_text(cleaned) == cleaned
    assert is_unicode(cleaned) or not is_unicode(text)


@pytest.mark.parametrize("name", ["onnx", "linear", "linear-onnx"])
@given(texts=st.lists(TEXTS, min_size=1, max_size=5))
def test_texts_are_classified_or_the_first_that_cannot_be_is_named(
    classifiers: dict[str, Classifier], name: str, texts: list[str]
) -> None:
    classifier = classifiers[name]
    broken = [number for number, text in enumerate(texts, start=1) if not is_unicode(text)]
    if broken:
        with pytest.raises(DataError, match=rf"^text {broken[0]} of {len(texts)} holds the lone surrogate U\+D[89A-F]"):
            classifier.predict_proba(texts)
        texts = [text for text in texts if is_unicode(text)]
    found = classifier.predict_proba(texts)
    assert found.shape == (len(texts), 2) and np.isfinite(found).all()
    for row, text in zip(found, texts, strict=True):
        np.testing.assert_allclose(row, classifier.predict_proba([text])[0], atol=1e-5)


@given(texts=st.lists(TEXTS.filter(is_unicode), min_size=1, max_size=5))
def test_both_engines_say_the_same_of_any_text(classifiers: dict[str, Classifier], texts: list[str]) -> None:
    np.testing.assert_allclose(
        classifiers["onnx"].logits(texts), classifiers["torch"].logits(texts), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(("piece", "times"), ENDLESS.values(), ids=ENDLESS)
def test_a_million_characters_without_a_space(classifiers: dict[str, Classifier], piece: str, times: int) -> None:
    # What takes more than linear time would run into the suite's limit.
    assert np.isfinite(classifiers["onnx"].predict_proba([piece * times, "great"])).all()


def test_what_is_no_text_is_a_type_error(classifiers: dict[str, Classifier]) -> None:
    wrong: Any
    for wrong in (None, 5, b"bytes", ["nested"]):
        with pytest.raises(TypeError, match="text 2 of 2 is a"):
            classifiers["onnx"].predict(["fine", wrong])
