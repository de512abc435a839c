"""RecurraClassifier: the training of `recurra train`, the manners of scikit-learn, and no file unless asked for."""

from __future__ import annotations

import enum
import pickle
import pickletools
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data

from recurra import Classifier, RecurraClassifier
from recurra.core.errors import CheckpointError, ConfigurationError, StorageError, UnusedLabelWarning
from recurra.core.record import read_record
from recurra.data.fitting import InputError
from reviews import Command, review_rows, snapshot, write_csv, write_tiny_model
from tiny_encoder import write_tiny_encoder

# One epoch of a tiny model often learns one label.
pytestmark = pytest.mark.filterwarnings("default::recurra.core.errors.UnusedLabelWarning")
ROWS = review_rows(120)
TEXTS, LABELS = [text for text, _ in ROWS], [label for _, label in ROWS]
QUICK: dict[str, Any] = {"max_epochs": 1, "batch_size": 32, "learning_rate": 1e-2, "max_length": 24}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model file of a few thousand parameters."""
    return str(write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.yaml"))


@pytest.fixture(scope="module")
def fitted(tiny: str) -> RecurraClassifier:
    """Fitted long enough to know its texts."""
    return RecurraClassifier(tiny, **{**QUICK, "max_epochs": 12}).fit(TEXTS, LABELS)


def test_it_learns_and_answers_as_an_estimator(fitted: RecurraClassifier, tiny: str, tmp_path: Path) -> None:
    for ask in (lambda made: made.predict(TEXTS), lambda made: made.save(tmp_path / "x"), lambda made: made.classifier):
        with pytest.raises(NotFittedError):
            ask(RecurraClassifier())
    assert fitted.score(TEXTS, LABELS) > 0.9
    probabilities = fitted.predict_proba(TEXTS)
    assert np.allclose(fitted.predict_log_proba(TEXTS), np.log(probabilities))
    assert probabilities.shape == (120, 2) and np.allclose(probabilities.sum(axis=1), 1)
    assert (fitted.classes_[probabilities.argmax(axis=1)] == fitted.predict(TEXTS)).all()
    assert fitted.classes_.tolist() == ["negative", "positive"]
    assert fitted.n_iter_ == len(fitted.history_) and fitted.history_[0]["epoch"] == 1
    for column in (np.array(TEXTS), np.array(TEXTS, dtype=object), pd.Series(TEXTS), tuple(TEXTS)):
        assert (fitted.predict_proba(column) == probabilities).all()
    assert fitted.predict([]).shape == (0,) and fitted.predict(["", " "]).shape == (2,)
    column = pd.Series(LABELS, dtype="category", index=range(500, 620))
    assert RecurraClassifier(tiny, **QUICK).fit(pd.Series(TEXTS), column).classes_.tolist() == ["negative", "positive"]


def test_it_is_trained_as_the_command_trains(tiny: str, tmp_path: Path, command: Command) -> None:
    other = review_rows(40, seed=1)
    train, held = write_csv(tmp_path / "train.csv", ROWS), write_csv(tmp_path / "other.csv", other)
    keys = {"max_epochs": 3, "batch_size": 32, "learning_rate": 0.01}
    command(
        "train", "--model", tiny, "--data", train, "--validation", held, "--test", held, "--output", tmp_path / "run",
        "--protocol", "finetune", "--seed", 3, "--tokenizer", "trained", "--cache-dir", tmp_path / "cache",
        "--threads", 1, "--no-latency", "--quiet", *(f"{key}={value}" for key, value in keys.items()),
        "data.max_length=24",
    )  # fmt: skip
    made = RecurraClassifier(tiny, protocol={"base": "finetune", **keys}, max_length=24, random_state=3)
    made.fit(TEXTS, LABELS, eval_set=tuple(zip(*other, strict=True)))
    made.save(tmp_path / "estimator")
    ours, theirs = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("estimator", "run"))
    assert set(ours) == set(theirs) and all((ours[name] == theirs[name]).all() for name in ours)
    assert [epoch["validation_loss"] for epoch in made.history_] == [
        epoch.validation_loss for epoch in read_record(tmp_path / "run").training.history
    ]


class Mood(enum.IntEnum):
    BAD = 1
    GOOD = 2


@pytest.mark.parametrize(
    ("two", "dtype"),
    [
        ((0, 1), "int64"),
        ((-1.0, 2.0), "float64"),
        ((False, True), "bool"),
        (("a, b", 'c"d'), "<U4"),
        (((1, "x"), (2, "y")), "object"),
        ((Mood.BAD, Mood.GOOD), "object"),
        (np.int8([3, 4]), "int8"),
    ],
    ids=["int", "float", "bool", "str", "tuple", "enum", "array"],
)
def test_labels_come_back_as_they_were(two: Any, dtype: str, tiny: str, tmp_path: Path) -> None:
    labels: Any = [two[int(label == "positive")] for label in LABELS]
    if dtype == "int8":
        with pytest.warns(DataConversionWarning):
            RecurraClassifier(tiny, **QUICK).fit(TEXTS, np.array(labels)[:, None])
        labels = np.array(labels)
    found = RecurraClassifier(tiny, **QUICK).fit(TEXTS, labels)
    assert found.classes_.tolist() == list(two) and found.classes_.dtype == dtype
    predicted = found.predict(TEXTS)
    assert predicted.dtype == dtype and set(predicted.tolist()) <= set(two)
    if dtype == "float64":
        with pytest.raises(ValueError, match="continuous"):
            RecurraClassifier(tiny, **QUICK).fit(TEXTS, [label / 3 for label in labels])
    if isinstance(two[0], tuple):
        with pytest.raises(ConfigurationError, match=r"labels \(tuple\) or parameters .* cannot be stored in a file"):
            found.save(tmp_path / "kept")
        assert snapshot(tmp_path) == {}


def with_row(values: list[Any], row: int, value: Any) -> list[Any]:
    return [*values[: row - 1], value, *values[row:]]


MIXED = "y has labels (int and str) that cannot be hashed and sorted"
REFUSED: list[tuple[Any, Any, dict[str, Any], str]] = [
    (with_row(TEXTS, 7, np.nan), LABELS, {}, "X: text 7 of 120 is missing (nan); fill it in or leave it out"),
    (with_row(TEXTS, 3, None), LABELS, {}, "X: text 3 of 120 is missing (None)"),
    (with_row(TEXTS, 5, b"x"), LABELS, {}, "text 5 of 120 is a bytes; give strings"),
    ("one text", LABELS, {}, "X is a str; give a list, an array or a Series"),
    (np.array(TEXTS).reshape(-1, 2), LABELS[::2], {}, "X has the shape (60, 2); give one column of values"),
    (TEXTS, with_row(LABELS, 2, None), {}, "y: the label of row 2 is missing"),
    (TEXTS, with_row(LABELS, 2, 1), {}, MIXED),
    (TEXTS, [1, "1"] * 60, {}, MIXED),
    (TEXTS, [["a"], ["b"]] * 60, {}, "y has labels (list) that cannot be hashed and sorted; give labels of one"),
    (TEXTS, LABELS[1:], {}, "X has 120 texts and y 119 labels; give one each"),
    (TEXTS, ["a"] * 120, {}, "y has one class only: 'a'; a classifier needs texts of at least two"),
    ([], [], {}, "y has no labels; a classifier needs texts of at least two"),
    ([" "] * 4, list("abab"), {}, "0 texts leave 0 to train on"),
    (TEXTS[:4], list("abab"), {}, "4 texts leave 4 to train on and 0 to choose the epoch by"),
    (TEXTS, LABELS, {"eval_set": (["x"], ["new"])}, "eval_set has the label 'new', which y lacks"),
    (TEXTS, LABELS, {"eval_set": TEXTS}, "eval_set is a list; give (texts, labels)"),
    (TEXTS, LABELS, {"sample_weight": [1.0]}, "sample_weight.shape is (1,), and there are 120 texts"),
    (TEXTS, LABELS, {"sample_weight": with_row([1.0] * 120, 9, -1.0)}, "sample_weight of row 9 is -1.0"),
    (TEXTS, LABELS, {"sample_weight": [0.0] * 120}, "sum to zero"),
]
MEANINGLESS: list[tuple[dict[str, Any], str]] = [
    ({"model": "recurent-tiny"}, "did you mean 'recurrent-tiny'"),
    ({"plan": "0-2"}, "plan is '0-2' without an encoder"),
    ({"protocol": "tune"}, "unknown protocol 'tune' (did you mean 'tuned'?)"),
    ({"protocol": {"max_epoch": 3}}, "did you mean 'max_epochs'"),
    ({"protocol": {"max_epochs": 3}, "max_epochs": 4}, "give it once"),
    ({"max_epochs": 0}, "max_epochs"),
    ({"precision": "fp8"}, "unknown precision 'fp8'"),
    ({"model": "linear", "max_epochs": 3}, "max_epochs is 3, and no training protocol trains linear; leave it out"),
    ({"model": "linear", "early_stopping": True}, "early_stopping is True, and no training protocol trains linear"),
    ({"model": "linear", "protocol": "finetune"}, "protocol is 'finetune', and no training protocol"),
    ({"n_jobs": 0}, "n_jobs is 0; give a number of threads"),
    ({"random_state": -1}, "seed"),
    ({"validation_fraction": 0}, "validation_fraction is 0; give a share between 0 and 1"),
]


def test_what_means_nothing_is_refused_in_one_line_when_it_is_fitted(tiny: str) -> None:
    asked = [({"model": tiny, **QUICK}, *one) for one in REFUSED]
    asked += [(parameters, TEXTS, LABELS, {}, said) for parameters, said in MEANINGLESS]
    for parameters, texts, labels, more, said in asked:
        with pytest.raises((ConfigurationError, ValueError, TypeError)) as caught:
            RecurraClassifier("recurrent-tiny").set_params(**parameters).fit(texts, labels, **more)
        assert said in str(caught.value) and "\n" not in str(caught.value)


def test_weights_decide_whom_it_believes(tiny: str) -> None:
    # Two opposite teachers: whose rows weigh nothing is not heard.
    texts, labels = TEXTS * 2, [*LABELS, *LABELS[::-1]]
    assert LABELS[0] != LABELS[-1]
    weights = np.array([1.0] * 120 + [0.0] * 120)
    found = RecurraClassifier(tiny, **{**QUICK, "max_epochs": 12}).fit(
        texts, labels, sample_weight=weights, eval_set=(TEXTS, LABELS)
    )
    assert found.score(TEXTS, LABELS) > 0.9
    other = clone(found).fit(texts, labels, sample_weight=1 - weights, eval_set=(TEXTS, LABELS[::-1]))
    assert other.score(TEXTS, LABELS) < 0.1
    with pytest.warns(UnusedLabelWarning, match=r"^the model gives 'negative' to none of \d+ .* not learned") as told:
        heard = [float(label == "positive") for label in LABELS]
        made = RecurraClassifier(tiny, **QUICK).fit(TEXTS, LABELS, heard)
    assert set(made.predict(TEXTS)) == {"positive"} and Path(told[0].filename).name == Path(__file__).name


def test_weights_are_relative_and_those_of_classes_are_weights_of_rows(tiny: str) -> None:
    few = [row for row, label in enumerate(LABELS) if label == "negative" or row % 8 == 1]
    texts, labels = [TEXTS[row] for row in few], [LABELS[row] for row in few]
    share = labels.count("positive") / len(labels)
    by_row = [0.5 / share if label == "positive" else 0.5 / (1 - share) for label in labels]
    said = [
        RecurraClassifier(tiny, **QUICK, class_weight=weight).fit(texts, labels, rows).classifier.logits(TEXTS)
        for weight, rows in (
            ("balanced", None),
            ({"positive": by_row[labels.index("positive")], "negative": by_row[labels.index("negative")]}, None),
            (None, by_row),
            (None, [10 * weight for weight in by_row]),
        )
    ]
    for other in said[1:]:
        np.testing.assert_allclose(other, said[0], atol=1e-5)
    plain = RecurraClassifier(tiny, **QUICK).fit(texts, labels).classifier.logits(TEXTS)
    assert np.diff(said[0]).mean() > np.diff(plain).mean() + 0.25


@pytest.mark.parametrize(
    "control", ["linear", "linear-tuned", pytest.param("recurra-small-and-words", marks=pytest.mark.slow)]
)
def test_weights_decide_whom_a_control_believes(control: str) -> None:
    texts, labels = TEXTS * 2, [*LABELS, *LABELS[::-1]]
    for believed, weights in ((LABELS, [1.0] * 120 + [0.0] * 120), (LABELS[::-1], [0.01] * 120 + [1.0] * 120)):
        found = RecurraClassifier(control, max_length=24).fit(texts, labels, weights, eval_set=(TEXTS, believed))
        assert found.score(TEXTS, believed) > 0.9
    heard = [float(label == "positive") for label in LABELS]
    with pytest.raises(InputError, match="a weight above 0 are of one class only: 'positive'; give rows of another"):
        RecurraClassifier(control).fit(TEXTS, LABELS, heard)


def test_by_itself_it_learns_from_few_texts_without_a_word(recwarn: pytest.WarningsRecorder) -> None:
    seen, fresh = review_rows(60, seed=5), review_rows(200, seed=6)
    made = RecurraClassifier().fit([text for text, _ in seen], [label for _, label in seen])
    assert made.score([text for text, _ in fresh], [label for _, label in fresh]) > 0.8
    assert (made.history_, made.n_iter_) == ([], 1)
    assert not [warning for warning in recwarn if issubclass(warning.category, UnusedLabelWarning)]


def test_no_file_stays_and_the_process_is_left_as_it_was(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    for name in ("home", "temporary", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    wanted = random.random(), np.random.rand(), torch.rand(1).item()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    found = RecurraClassifier(tiny, **QUICK, n_jobs=2).fit(TEXTS, LABELS)
    found.predict(TEXTS)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == wanted
    assert torch.get_num_threads() == 1
    assert snapshot(tmp_path) == {}


def test_what_is_saved_is_a_run_and_is_read_back_as_it_was(
    fitted: RecurraClassifier, tmp_path: Path, command: Command
) -> None:
    fitted.save(tmp_path / "kept")
    with pytest.raises(
        StorageError, match="is there already; choose another folder=, or replace it with overwrite=True"
    ):
        fitted.save(tmp_path / "kept")
    fitted.save(tmp_path / "kept", overwrite=True)
    with pytest.raises(StorageError, match=r"has files but no estimator\.json, and is not replaced"):
        fitted.save(tmp_path, overwrite=True)
    wanted = fitted.predict_proba(TEXTS)
    again = RecurraClassifier.load(tmp_path / "kept")
    assert (again.predict_proba(TEXTS) == wanted).all() and again.get_params() == fitted.get_params()
    assert again.classes_.dtype == fitted.classes_.dtype and again.history_ == fitted.history_
    assert (Classifier.from_run(tmp_path / "kept").predict_proba(TEXTS) == wanted).all()
    assert LABELS[0] in command("predict", tmp_path / "kept", TEXTS[0]).out
    write_csv(tmp_path / "rows.csv", ROWS)
    command("evaluate", tmp_path / "kept", "--data", tmp_path / "rows.csv")
    said = command("evaluate", tmp_path / "kept", code=2).err
    assert "was trained on texts in memory, which were not kept" in said


def test_what_was_changed_or_is_something_else_is_not_read(fitted: RecurraClassifier, tmp_path: Path) -> None:
    fitted.save(tmp_path / "kept")
    for name in ("estimator.json", "model/model.safetensors", "record.json"):
        path = tmp_path / "kept" / name
        content = path.read_bytes()
        path.write_bytes(content.replace(b"negative", b"negativX") if name.endswith("json") else content[:-1] + b"x")
        with pytest.raises(CheckpointError):
            RecurraClassifier.load(tmp_path / "kept")
        path.write_bytes(content)
    (tmp_path / "kept" / "estimator.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no estimator\.json: it was not written by RecurraClassifier\.save"):
        RecurraClassifier.load(tmp_path / "kept")


def test_what_joblib_sends_holds_no_model(fitted: RecurraClassifier) -> None:
    sent = pickle.dumps(fitted)
    words = [value for code, value, _ in pickletools.genops(sent) if "UNICODE" in code.name]
    modules = {word.partition(".")[0] for word in words if word in sys.modules}
    assert "numpy" in modules and not modules & {"torch", "transformers", "tokenizers", "safetensors"}
    assert (pickle.loads(sent).predict_proba(TEXTS) == fitted.predict_proba(TEXTS)).all()


def test_a_folder_is_taken_up_and_not_given_to_another(tiny: str, tmp_path: Path) -> None:
    made = RecurraClassifier(tiny, **QUICK, folder=tmp_path / "run").fit(TEXTS, LABELS)
    before = snapshot(tmp_path / "run")
    assert not [name for name in before if name.startswith("checkpoints")]
    again = clone(made).fit(TEXTS, LABELS)
    assert {**snapshot(tmp_path / "run"), "estimator.json": b""} == {**before, "estimator.json": b""}
    assert (again.predict_proba(TEXTS) == made.predict_proba(TEXTS)).all()
    assert (RecurraClassifier.load(tmp_path / "run").predict(TEXTS) == made.predict(TEXTS)).all()
    for texts, labels, weights in ((TEXTS[2:], LABELS[2:], None), (TEXTS, LABELS, np.linspace(0, 1, 120))):
        with pytest.raises(StorageError, match="holds another run"):
            clone(made).fit(texts, labels, weights)


def test_it_starts_from_an_encoder_and_shares_its_layers(tmp_path: Path) -> None:
    encoder = write_tiny_encoder(tmp_path / "encoder", TEXTS)
    RecurraClassifier(str(encoder), folder=tmp_path / "named", **QUICK).fit(TEXTS, LABELS)
    assert read_record(tmp_path / "named").training.protocol == "finetune-small"
    found = RecurraClassifier(encoder=encoder, plan="0 (1 2)x2 3", **QUICK).fit(TEXTS, LABELS)
    found.save(tmp_path / "kept")
    record = read_record(tmp_path / "kept")
    assert record.model.encoder is not None and record.model.encoder.plan == "0 (1 2)x2 3"
    assert record.training.protocol == "finetune-small"
    linear = RecurraClassifier("linear").fit(TEXTS, LABELS)
    assert linear.score(TEXTS, LABELS) == 1.0 and (linear.history_, linear.n_iter_) == ([], 1)


def test_it_stops_early_if_asked_to(tiny: str) -> None:
    keys = {**QUICK, "max_epochs": 9, "learning_rate": 1e-6}
    assert RecurraClassifier(tiny, **keys, early_stopping=2).fit(TEXTS, LABELS).n_iter_ == 3
    assert RecurraClassifier(tiny, **keys, early_stopping=False).fit(TEXTS, LABELS).n_iter_ == 9


def test_seeds_decide_and_threads_do_not(tiny: str) -> None:
    def said(state: Any) -> Any:
        return RecurraClassifier(tiny, **QUICK, random_state=state).fit(TEXTS, LABELS).predict_proba(TEXTS)

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(said, (0, 0))
    assert (first == said(0)).all() and (second == first).all() and (said(1) != first).any()
    assert (said(np.random.RandomState(5)) == said(np.random.RandomState(5))).all()


def test_it_is_searched_in_a_pipeline(tiny: str) -> None:
    shorten = FunctionTransformer(lambda texts: [text[:60] for text in texts])
    steps = [("shorten", shorten), ("classify", RecurraClassifier(tiny, **QUICK))]
    search = GridSearchCV(Pipeline(steps), {"classify__learning_rate": [1e-2, 1e-6]}, cv=2, error_score="raise")
    search.fit(TEXTS, LABELS)
    assert set(search.predict(TEXTS)) <= set(LABELS) and len(search.cv_results_["mean_test_score"]) == 2


@pytest.mark.slow
def test_two_processes_search_and_give_their_estimators_back(tiny: str) -> None:
    found = cross_validate(RecurraClassifier(tiny, **QUICK), TEXTS, LABELS, cv=2, n_jobs=2, return_estimator=True)
    alone = cross_validate(RecurraClassifier(tiny, **QUICK), TEXTS, LABELS, cv=2, return_estimator=True)
    assert (found["test_score"] == alone["test_score"]).all()
    for one, other in zip(found["estimator"], alone["estimator"], strict=True):
        np.testing.assert_allclose(one.predict_proba(TEXTS), other.predict_proba(TEXTS), atol=1e-6)


class OnNumbers(RecurraClassifier):
    """Reads numbers as words, for scikit-learn's own checks, which have no texts; shape and type are its validation."""

    def __init__(self, model: str = "recurrent-tiny", *, class_weight: Any = None, random_state: Any = 0) -> None:
        super().__init__(model, class_weight=class_weight, random_state=random_state, **QUICK)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array, tags.input_tags.string = True, False, False
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:  # type: ignore[override]  # noqa: N803
        return super().fit(as_words(validate_data(self, X, dtype=None)), y, sample_weight)

    def _read_numbers(self, X: Any) -> list[str]:  # noqa: N803
        check_is_fitted(self)
        return as_words(validate_data(self, X, reset=False, dtype=None))

    def predict(self, X: Any) -> Any:  # noqa: N803
        return super().predict(self._read_numbers(X))

    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        return super().predict_proba(self._read_numbers(X))


def as_words(table: Any) -> list[str]:
    """A word a column: its name and its value to a tenth."""
    return [" ".join(f"c{place}x{10 * float(cell):.0f}" for place, cell in enumerate(row)) for row in table]


# scikit-learn itself skips all checks of an estimator that reads no tables of numbers: they are asked of `OnNumbers`.
# These do not apply to a classifier of texts:
_FEW = "its 16 rows are four different texts, and equal texts stay on one side of the split: none can choose the epoch"
NOT_FOR_TEXTS = {
    "check_sample_weight_equivalence_on_dense_data": "a row that is given twice meets others in its batches than "
    "one that weighs 2; their losses are equal (tests/unit/training/test_fit.py)",
    "check_sample_weights_shape": _FEW,
    "check_sample_weights_not_overwritten": _FEW,
    "check_classifiers_train": "asks for an accuracy on numbers, which are no words",
}


@parametrize_with_checks([OnNumbers()], expected_failed_checks=lambda _: NOT_FOR_TEXTS)
def test_it_passes_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)
