"""Words that a label hangs on: where they stand, what leaving them out does, and that they are the right ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from recurra.deployment.classifier import Classifier
from recurra.deployment.decision import MOST_EXPLAINED_LABELS, AnyLabels
from recurra.deployment.engines.computation import LinearEngine
from recurra.deployment.explanation import MOST_PARTS, explain, occluded, spans_of, without
from recurra.models.controls.fitting import fit_tuned
from reviews import review_rows


@given(st.text(alphabet="ab é'’.,!-_😀 \n\t7", max_size=400))
def test_spans_are_whole_words_in_their_order_and_no_more_than_allowed(text: str) -> None:
    spans = spans_of(text)
    assert len(spans) <= MOST_PARTS
    for (_, before), (start, end) in itertools.pairwise([(0, 0), *spans]):
        assert before <= start < end <= len(text)
        for edge in (start, end):
            assert not (0 < edge < len(text)) or not (text[edge - 1].isalnum() and text[edge].isalnum())
    left = text
    for span in reversed(spans):
        left = without(left, span)
    assert not any(character.isalnum() or character == "😀" for character in left)
    assert bool(spans) == any(character.isalnum() or character in "_😀" for character in text)


def test_texts_without_spaces_are_taken_two_characters_at_a_time() -> None:
    text = "这部电影 was不好看。ดีมาก 👍"
    words = ["这部", "电影", "was", "不好", "看", "ดี", "มา", "ก", "👍"]
    assert [text[start:end] for start, end in spans_of(text)] == words


def test_a_long_text_is_taken_in_runs_of_words() -> None:
    text = " ".join(f"w{number}" for number in range(1000))
    spans = spans_of(text)
    assert 60 <= len(spans) <= MOST_PARTS and {len(text[a:b].split()) for a, b in spans[:-1]} == {16}
    assert spans[0][0] == 0 and spans[-1][1] == len(text)
    read = spans_of(text, end=len(" ".join(text.split()[:MOST_PARTS])))
    assert [text[start:end] for start, end in read] == text.split()[:MOST_PARTS]


def test_an_effect_is_the_probability_that_the_label_loses() -> None:
    rows = review_rows(150)
    fitted = fit_tuned([text for text, _ in rows], np.array([label == "positive" for _, label in rows], dtype=np.int64))
    classifier = Classifier(LinearEngine(fitted), ["negative", "positive"])
    # So many words that they are computed in several groups; texts without words among them.
    many = [*(text for text, _ in rows), "", "!!", "word"]
    said = classifier.predict_proba(many)
    labels = said.argmax(axis=1).tolist()
    computed: list[int] = []

    def predict(asked: Any) -> npt.NDArray[np.float64]:
        computed.append(len(asked))
        return classifier.predict_proba(asked)

    cut = explain(predict, many, said, classifier.decision, lambda text: len(" ".join(text.split()[:2])))
    found = explain(predict, many, said, classifier.decision, len)
    assert [one.labels[0].words for one in cut] == [one.labels[0].words[:2] for one in found]
    assert len(found) == len(many) and len(computed) > 1 and max(computed) <= 1024
    assert [one.labels[0].words for one in found[-3:-1]] == [[], []]
    for text, probabilities, label, one in list(zip(many, said, labels, found, strict=True))[::20]:
        assert one.exclusive and len(one.labels) == 1
        for word in one.labels[0].words:
            assert text[word.start : word.end] == word.text
            rest = classifier.predict_proba([text[: word.start] + text[word.end :]])[0]
            assert word.effect == pytest.approx(probabilities[label] - rest[label], abs=1e-5)


NAMES = ["a", "b", "c"]
# What each word adds to the score of each label; together they add more.
ADDS = {"late": (2.0, -1.0, 0.25), "torn": (-1.0, 3.0, 0.0), "thanks": (-3.0, -3.0, 1.0), "box": (0.0, 0.5, -0.5)}


def of_several(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    rows = [np.sum([ADDS[word] for word in text.split()] or [(0.0, 0.0, 0.0)], axis=0) for text in texts]
    return expit(np.array(rows).reshape(-1, 3) ** 3 / 4 - 0.5)


@given(
    st.lists(st.lists(st.sampled_from(sorted(ADDS)), max_size=7).map(" ".join), min_size=1, max_size=5),
    st.lists(st.sampled_from([0.1, 0.378, 0.5, 0.9]), min_size=3, max_size=3),
)
def test_each_label_of_a_text_has_the_effects_of_naive_occlusion(texts: list[str], thresholds: list[float]) -> None:
    said = of_several(texts)
    found = explain(of_several, texts, said, AnyLabels(NAMES, thresholds, ";"), len)
    assert len(found) == len(texts)
    for text, probabilities, one in zip(texts, said.tolist(), found, strict=True):
        margins = [probability - least for probability, least in zip(probabilities, thresholds, strict=True)]
        labels = [place for place, margin in enumerate(margins) if margin >= 0]
        told = labels or [margins.index(max(margins))]
        assert not one.exclusive
        assert [(each.label, each.given) for each in one.labels] == [(NAMES[place], bool(labels)) for place in told]
        words = text.split()
        for place, each in zip(told, one.labels, strict=True):
            assert [word.text for word in each.words] == words
            for number, word in enumerate(each.words):
                rest = of_several([" ".join([*words[:number], *words[number + 1 :]])])[0]
                assert word.effect == pytest.approx(probabilities[place] - rest[place], abs=1e-6)
            for shown in (each, *one.strongest(1).labels[told.index(place) :][:1]):
                whole = probabilities[place] - of_several([""])[0, place]
                assert sum(word.effect for word in shown.words) + shown.remainder == pytest.approx(whole, abs=1e-5)


def test_what_is_not_read_does_not_take_the_place_of_what_is_left_out() -> None:
    text = "not bad at all !! and so on"
    assert occluded(text, spans_of(text, end=7)) == [" bad at all !! and so on", "not  at all !! and so on", " "]
    assert occluded(text, spans_of(text))[-1].split() == ["!!"]
    assert occluded("bad !", spans_of("bad !")) == [" !"] and occluded("!", []) == []


def test_of_very_many_labels_those_farthest_above_their_thresholds_are_told() -> None:
    many = 3 * MOST_EXPLAINED_LABELS
    said = np.linspace(0.5, 0.9, many)[None]
    decision = AnyLabels([str(number) for number in range(many)], [0.5] * many, ";")
    assert decision.explained(said) == [list(range(many - MOST_EXPLAINED_LABELS, many))]
    assert decision.explained(said - 0.6) == [[many - 1]]
    assert decision.explained(said[:0]) == []
