"""A scikit-learn estimator that classifies texts, fitted in memory by the code that ``recurra train`` runs.

A fitted estimator holds the files of a run folder, as bytes, beside the model that was read from them. So `save` writes
what ``recurra predict`` reads, and joblib sends bytes of safetensors and JSON to another process, not a model.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import StrictBool, StrictFloat, StrictInt, StrictStr
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from recurra.core.configuration import content_hash
from recurra.core.environment import available_cores
from recurra.core.errors import CheckpointError, ConfigurationError, UnusedLabelWarning, errors_for_python
from recurra.core.files import atomic_folder, locked_folder
from recurra.core.packed import HISTORY_NAME
from recurra.core.progress import Reporter
from recurra.core.record import RECORD_NAME, RunRecord, read_record, write_record
from recurra.core.sealed import MODEL_NAME, SEAL_NAME, Sealed
from recurra.data.cleaning import CAREFUL
from recurra.data.configuration import DataConfig
from recurra.data.corpora import IN_MEMORY
from recurra.data.dataset import TextDataset
from recurra.data.fitting import TRAIN, VALIDATION, fitting_rows, given_texts, input_errors
from recurra.data.tokenization import TRAINED
from recurra.deployment.classifier import Classifier, log_probabilities
from recurra.deployment.decision import OneLabel
from recurra.deployment.engines import load_engine
from recurra.deployment.engines.trained import TransformerEngine
from recurra.evaluation.metrics import evaluate_logits, fit_temperature, never_given
from recurra.models.inference import check_precision, torch_threads
from recurra.models.quiet import quiet_loading
from recurra.study.assignments import sort_keywords
from recurra.study.plan import CONFIG_NAME, claim_folder
from recurra.tasks.base import PLAN, SMALL_AND_WORDS, RunConfig
from recurra.tasks.classification.task import TASK
from recurra.tasks.labelling import labelled
from recurra.tasks.run_folder import TRAINING_NAME, run_facts, shape_of
from recurra.tasks.runs import default_protocol, make_run, refuse_unused_keys, resolve_model
from recurra.tasks.study_data import Machine, StudyData
from recurra.training.fit import isolated_random_state, remove_checkpoints

ESTIMATOR_NAME = "estimator.json"
# Epochs without improvement that `early_stopping=True` waits for.
_PATIENCE = 3
# Texts of each label that show whether a fitted model ever predicts it, and labels that a warning names.
_LOOKED_AT, _MOST_NAMED = 20, 3
_RUN_FILES = (CONFIG_NAME, RECORD_NAME, SEAL_NAME, HISTORY_NAME, TRAINING_NAME)

Texts = Sequence[str] | npt.NDArray[Any]
Label = StrictBool | StrictInt | StrictFloat | StrictStr


class EstimatorFile(Sealed):
    """Facts of an estimator that a run folder lacks: its labels as they came, and its parameters."""

    schema_version: Literal[1] = 1
    classes: list[Label]
    dtype: str
    parameters: dict[str, Any]


class RecurraClassifier(ClassifierMixin, BaseEstimator):
    """Classifies texts; an estimator of scikit-learn.

    By itself it is a linear model of words and characters beside the frozen encoder of this package: fitted in seconds,
    without a download. `encoder` has one fine-tuned, in minutes.

    Args:
        model: A control (``recurra-small-and-words``, ``linear-tuned``, ``linear``), a preset to train from scratch, or
            a model file; `encoder` takes precedence.
        encoder: A pretrained encoder to start from, e.g. ``minilm``, or a folder.
        plan: Which of the encoder's layers are shared (``0 (3 4)x2 5``); None takes it as it is.
        protocol: Training protocol by name or file, or keys of one; None takes ``tuned``, or with an encoder
            that for the number of rows (`recurra.training.protocols.finetuning_for`).
        max_epochs: Passes over the texts at most; for this and the next two, None takes the protocol's. Controls take
            none of these, nor ``early_stopping`` or ``protocol``.
        learning_rate: Peak learning rate.
        batch_size: Texts an optimiser step.
        early_stopping: Whether to stop after three epochs without improvement, or after how many; None follows the
            protocol.
        max_length: Longest text in tokens; the rest is cut.
        windows: Most windows of `max_length` tokens that a longer text is read in, whose scores are averaged.
        tokenizer: For a model without an encoder: ``trained`` (on the texts that it is fitted on) or a path.
        precision: ``fp32`` or ``bf16``; ``fp16`` on an accelerator.
        validation_fraction: Share of the texts that chooses the epoch, by label; equal texts stay together. Not used
            with an ``eval_set``.
        class_weight: Weight of each label, or ``balanced``: inverse to its frequency. Multiplied with
            ``sample_weight``.
        random_state: Seed of weights, batch order, dropout and the split; as scikit-learn takes it. The generators of
            the process are left as they were.
        n_jobs: Threads of torch; None leaves them, -1 takes all cores.
        verbose: Whether to report progress on standard error.
        folder: Run folder that stays, and in which an interrupted fit is resumed; None keeps no file.

    Attributes:
        classes_: Labels in sorted order, as they came, ``(labels,)``.
        history_: Measurements after each epoch; empty for controls.
        n_iter_: Epochs that it was trained for; 1 for controls.
    """

    classes_: npt.NDArray[Any]

    def __init__(
        self,
        model: str = SMALL_AND_WORDS,
        *,
        encoder: str | Path | None = None,
        plan: str | None = None,
        protocol: str | Mapping[str, Any] | None = None,
        max_epochs: int | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        early_stopping: bool | int | None = None,
        max_length: int = 128,
        windows: int = 1,
        tokenizer: str | Path = TRAINED,
        precision: str = "fp32",
        validation_fraction: float = 0.1,
        class_weight: Mapping[Any, float] | str | None = None,
        random_state: Any = 0,
        n_jobs: int | None = None,
        verbose: bool | int = False,
        folder: str | Path | None = None,
    ) -> None:
        self.model = model
        self.encoder = encoder
        self.plan = plan
        self.protocol = protocol
        self.max_epochs = max_epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.max_length = max_length
        self.windows = windows
        self.tokenizer = tokenizer
        self.precision = precision
        self.validation_fraction = validation_fraction
        self.class_weight = class_weight
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.folder = folder

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.one_d_array = True
        tags.input_tags.string = True
        return tags

    @errors_for_python(output="folder")
    def fit(self, X: Texts, y: Any, sample_weight: Any = None, eval_set: tuple[Texts, Any] | None = None) -> Self:  # noqa: N803
        """Trains from the start.

        Warns with `recurra.core.errors.UnusedLabelWarning` of a label that it never predicts.

        Args:
            X: Texts as they come, ``(texts,)``; texts that are empty after cleaning are left out.
            y: A label each, ``(texts,)``: words, numbers or truth values.
            sample_weight: Relative weight of the loss of each text, ``(texts,)``. Texts that choose the epoch count
                alike.
            eval_set: Texts and labels that choose the epoch; None splits them off.

        Raises:
            InputError: If texts and labels cannot be used, with the row.
            TypeError: If a text is no string, with its number.
            ConfigurationError: If a parameter is wrong, or does not apply to the model.
        """
        seed = self._seed()
        with input_errors():
            dataset, weights, classes = fitting_rows(
                X,
                y,
                sample_weight=sample_weight,
                class_weight=self.class_weight,
                eval_set=eval_set,
                validation_fraction=self.validation_fraction,
                seed=seed,
            )
        config = self._run(dataset, weights, seed)
        estimator = self._file(classes) if self.folder is not None else None
        with tempfile.TemporaryDirectory() as temporary, isolated_random_state(), self._threads(), quiet_loading():
            run = Path(temporary, "run") if self.folder is None else Path(self.folder)
            data = StudyData(Machine(cache_dir=Path(temporary, "cache")))
            data.hold(labelled(config.data), dataset)
            with locked_folder(run):
                if claim_folder(config, run) is None:
                    with input_errors():
                        self._train(config, run, data, dataset, weights)
                if estimator is not None:
                    estimator.write(run / ESTIMATOR_NAME)
            self.classes_ = classes
            self._read(run)
            self._warn_of_unused_labels(dataset)
        return self

    def _warn_of_unused_labels(self, dataset: TextDataset) -> None:
        train, others = dataset.splits[TRAIN], dataset.splits[VALIDATION]
        order = np.argsort(train.labels, kind="stable")
        # For each label, a few of its own texts show whether it is ever predicted.
        ends = np.searchsorted(train.labels[order], np.arange(dataset.num_labels))
        rows = order[np.arange(len(order)) - ends[train.labels[order]] < _LOOKED_AT]
        texts, truth = train.select(rows).texts, train.labels[rows]
        labels = self.classifier.logits([*texts, *others.texts], clean=False).argmax(axis=1)
        if unused := never_given(labels, truth, dataset.label_names):
            remainder = f" and {len(unused) - _MOST_NAMED:,} more" if len(unused) > _MOST_NAMED else ""
            names = f"{', '.join(map(repr, unused[:_MOST_NAMED]))}{remainder}"
            message = (
                f"the model gives {names} to none of {len(labels):,} training texts, some of each label: it has not "
                "learned that; give it more texts or epochs, or use encoder='minilm'"
            )
            # The warning points to the caller of fit, which errors_for_python wraps.
            warnings.warn(message, UnusedLabelWarning, stacklevel=4)

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    @contextlib.contextmanager
    def _threads(self) -> Iterator[None]:
        count = self.n_jobs
        if count == 0 or (count is not None and count < -available_cores()):
            raise ConfigurationError(f"n_jobs is {count}; give a number of threads, -1 for all cores, or None")
        if count is None:
            count = torch.get_num_threads()
        with torch_threads(count if count > 0 else available_cores() + 1 + count):
            yield

    def _run(self, dataset: TextDataset, weights: npt.NDArray[np.float32] | None, seed: int) -> RunConfig:
        check_precision(self.precision)
        if self.plan is not None and self.encoder is None:
            raise ConfigurationError(f"plan is '{self.plan}' without an encoder whose layers it chooses; give encoder")
        keys: dict[str, Any] = {key: getattr(self, key) for key in ("max_epochs", "learning_rate", "batch_size")}
        if self.early_stopping is not None:
            keys["early_stopping_patience"] = _PATIENCE if self.early_stopping is True else int(self.early_stopping)
        training_keys = {key: value for key, value in keys.items() if value is not None}
        model = str(self.model if self.encoder is None else self.encoder)
        name, overrides = resolve_model(model)
        base, assigned = sort_keywords(training_keys, self.protocol, task=TASK)
        stopping = {"early_stopping": self.early_stopping} if "early_stopping_patience" in training_keys else {}
        default, _ = default_protocol(name, overrides, lambda: len(dataset.splits["train"]))
        training = TASK.load_protocol(base or default, assigned.protocol)
        refuse_unused_keys(name, overrides, {**stopping, **assigned.protocol}, self.protocol, training)
        run = make_run(
            model,
            DataConfig.parse(
                {
                    "name": IN_MEMORY,
                    "max_length": self.max_length,
                    "windows": self.windows,
                    "tokenizer": str(self.tokenizer),
                    "clean": CAREFUL,
                },
                source="data",
            ),
            training,
            seed=seed,
            precision=self.precision,
            overrides={} if self.plan is None else {PLAN: self.plan},
        )
        rows = dataset.fingerprint
        if weights is not None:
            rows = content_hash([rows, weights.tolist()])
        return run.model_copy(update={"data_hash": rows})

    def _train(
        self,
        config: RunConfig,
        run: Path,
        data: StudyData,
        dataset: TextDataset,
        weights: npt.NDArray[np.float32] | None,
    ) -> None:
        """Trains as ``recurra train`` does, and writes the record last."""
        started = time.perf_counter()
        reporter = Reporter(quiet=not self.verbose)
        trained = TASK.trainer(config)(config, run, data, reporter, weights=weights)
        reporter.stage(config.run_id, "evaluating")
        engine = load_engine(
            run / MODEL_NAME,
            precision=config.precision,
            max_length=self.max_length,
            windows=self.windows,
        )
        selection = dataset.splits[VALIDATION]
        logits = engine.logits(selection.texts, config.protocol.evaluation_batch_size)
        decision = OneLabel(dataset.label_names, fit_temperature(logits, selection.labels))
        record = RunRecord(
            **run_facts(config, started, torch.get_num_threads()),
            data=dataset.record(trained.tokenizer),
            model=trained.model,
            training=trained.training,
            metrics={VALIDATION: evaluate_logits(logits, selection.labels, decision.temperature)},
            decision=decision.record(),
            shape=shape_of(engine.model.config) if isinstance(engine, TransformerEngine) else {},
        )
        write_record(run, record)
        remove_checkpoints(run)

    def _read(self, run: Path) -> None:
        """Reads a finished run folder, which is not needed afterwards."""
        self._classifier = Classifier.from_run(run)
        paths = [*(run / name for name in _RUN_FILES), *sorted((run / MODEL_NAME).iterdir())]
        self._files = {path.relative_to(run).as_posix(): path.read_bytes() for path in paths if path.is_file()}
        training = read_record(run).training
        self.history_ = [epoch.model_dump() for epoch in training.history]
        self.n_iter_ = max(1, training.epochs)

    def _write(self, run: Path) -> None:
        for name, content in self._files.items():
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            (run / name).write_bytes(content)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the model, which is read again from the bytes of its files where it is needed."""
        return {key: value for key, value in super().__getstate__().items() if key != "_classifier"}

    @property
    def classifier(self) -> Classifier:
        """The fitted model as `recurra.Classifier`, which also gives logits, streams and stops early."""
        check_is_fitted(self)
        if "_classifier" not in vars(self):
            with tempfile.TemporaryDirectory() as temporary:
                self._write(Path(temporary))
                self._classifier = Classifier.from_run(temporary)
        return self._classifier

    def predict(self, X: Texts) -> npt.NDArray[Any]:  # noqa: N803
        """Returns the most probable label of each text, ``(texts,)``.

        Raises:
            InputError: If there are no texts, or a cell is missing.
            TypeError: If a text is no string, with its number.
        """
        numbers: npt.NDArray[np.int64] = self._logits(X).argmax(axis=1)
        return self.classes_[numbers]

    def predict_proba(self, X: Texts) -> npt.NDArray[np.float64]:  # noqa: N803
        """Returns probabilities ``(texts, labels)``, labels as in ``classes_``; raises as `predict` does."""
        return self.classifier.decision.probabilities(self._logits(X))

    def predict_log_proba(self, X: Texts) -> npt.NDArray[np.float64]:  # noqa: N803
        """Returns natural logarithms of `predict_proba`; that of 0 is minus infinity."""
        return log_probabilities(self.predict_proba(X))

    def _logits(self, texts: Any) -> npt.NDArray[np.float32]:
        classifier = self.classifier
        with input_errors(), self._threads():
            return classifier.logits(given_texts(texts, "X"))

    @errors_for_python(output="folder")
    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Writes a run folder, which ``recurra predict``, `recurra.Classifier` and `load` read.

        Args:
            overwrite: Whether an estimator that was saved in the folder is replaced.

        Raises:
            ConfigurationError: If a file cannot hold the labels or parameters.
            StorageError: If it cannot be written, or the folder holds anything else.
        """
        check_is_fitted(self)
        estimator = self._file(self.classes_)
        with atomic_folder(folder, replace=overwrite, mark=ESTIMATOR_NAME) as fresh:
            self._write(fresh)
            estimator.write(fresh / ESTIMATOR_NAME)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Reads what `save` wrote, or a fit with ``folder``; every file is checked against its hash.

        Raises:
            CheckpointError: If it is no such folder, incomplete, or was changed.
        """
        run = Path(folder)
        if not (run / ESTIMATOR_NAME).is_file():
            raise CheckpointError(
                f"'{run}' has no {ESTIMATOR_NAME}: it was not written by RecurraClassifier.save; read any other run "
                "with recurra.Classifier.from_run"
            )
        stored = EstimatorFile.read(run / ESTIMATOR_NAME, what="a saved estimator", cure="save it again")
        unknown = sorted(set(stored.parameters) - set(cls().get_params()))
        if unknown:
            raise CheckpointError(f"'{run / ESTIMATOR_NAME}' has the unknown parameter '{unknown[0]}'; upgrade recurra")
        weight = stored.parameters.get("class_weight")
        pairs = {"class_weight": dict(map(tuple, weight))} if isinstance(weight, list) else {}
        model = cls(**{**stored.parameters, **pairs})
        model.classes_ = np.array(stored.classes, dtype=np.dtype(stored.dtype))
        model._read(run)
        if len(model.classes_) != len(model.classifier.classes_):
            raise CheckpointError(
                f"'{run}' has {len(model.classes_)} labels in {ESTIMATOR_NAME} and {len(model.classifier.classes_)} in "
                f"{RECORD_NAME}; save it again"
            )
        return model

    def _file(self, classes: npt.NDArray[Any]) -> EstimatorFile:
        parameters = {key: str(value) if isinstance(value, Path) else value for key, value in self.get_params().items()}
        if isinstance(self.class_weight, Mapping):
            parameters["class_weight"] = [[_plain(label), weight] for label, weight in self.class_weight.items()]
        if not isinstance(self.random_state, int | np.integer | None):
            parameters["random_state"] = None
        try:
            # The folder belongs to this estimator, not to one that is loaded from the file.
            plain = json.loads(json.dumps({**parameters, "folder": None}, default=_plain, allow_nan=False))
            return EstimatorFile(classes=classes.tolist(), dtype=classes.dtype.str, parameters=plain)
        except (TypeError, ValueError, AttributeError) as error:
            raise ConfigurationError(
                f"labels ({type(classes.tolist()[0]).__name__}) or parameters of this estimator cannot be stored in a "
                "file; give labels as words or numbers, and plain parameters"
            ) from error


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
