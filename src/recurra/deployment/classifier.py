"""A trained run as a classifier: text in, label out, in the order of the input."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recurra.core.best_run import find_run
from recurra.core.errors import CheckpointError, ConfigurationError, no_numbers
from recurra.core.sealed import sealed_model
from recurra.data.cleaning import FIRST, check_texts, clean_text, clean_texts, recorded_cleaning
from recurra.data.columns import one_dimension
from recurra.data.windows import recorded_reading
from recurra.deployment.decision import LabelDecision, OneLabel, read_decision
from recurra.deployment.engines import load_engine
from recurra.deployment.engines.computation import (
    DEFAULT_BATCH_SIZE,
    NO_RECURRENCES,
    Classified,
    Computation,
    Engine,
    Trace,
)
from recurra.deployment.export.manifest import CalibrationRecord, is_export, read_export, read_run, refuse_precision
from recurra.models.exits.rules import ExitRule
from recurra.models.exits.thresholds import depths_under

# Most attempts, each with a longer part of a text cleaned, to find how much of it a model can read.
_CLEANINGS = 8
_LETTER = re.compile(r"\w")


class Classifier:
    """Predicts labels of texts, with scikit-learn's conventions.

    Cleaning and tokenisation are those of the training. Texts of similar length are computed in batches of as many
    tokens as ``batch_size`` texts of 32 tokens have, and results are in the order of the texts.
    """

    def __init__(
        self,
        engine: Engine,
        label_names: Sequence[str],
        *,
        batch_size: int = DEFAULT_BATCH_SIZE,
        calibration: CalibrationRecord | None = None,
        decision: LabelDecision | None = None,
        cleaning: str = FIRST,
    ) -> None:
        if batch_size < 1:
            raise ConfigurationError(f"batch_size is {batch_size}; allowed: 1 or more texts")
        self.engine = engine
        self.decision = decision or OneLabel(label_names)
        self.calibration = calibration
        self.cleaning = cleaning
        self._rule: ExitRule | None = None
        self.classes_: npt.NDArray[np.str_] = np.array(list(label_names))
        self.batch_size = batch_size

    @classmethod
    def open(
        cls, folder: Path | str, *, precision: str | None = None, batch_size: int = DEFAULT_BATCH_SIZE, threads: int = 0
    ) -> Classifier:
        """Reads a finished run, an export, or the run that a comparison recommends; see `from_run`, `from_export`.

        Args:
            threads: Threads of ONNX Runtime, or of torch, which sets them for the whole process; 0 keeps the default.
        """
        folder = find_run(folder).folder
        if is_export(folder):
            classifier = cls.from_export(folder, precision=precision, batch_size=batch_size, threads=threads)
        else:
            classifier = cls.from_run(folder, precision=precision, batch_size=batch_size)
        if threads and classifier.computation.engine == "torch":
            import torch

            torch.set_num_threads(threads)
        return classifier

    @classmethod
    def from_export(
        cls, folder: Path | str, *, precision: str | None = None, batch_size: int = DEFAULT_BATCH_SIZE, threads: int = 0
    ) -> Classifier:
        """Reads a folder made by ``recurra export``, after checking every file against its hash.

        Args:
            precision: Precision to compute in: ``fp32`` or ``bf16``, ``fp16`` on an accelerator; none takes that of the
                stored weights, but FP32 for FP16 on a CPU. An ONNX export only computes in its own.
            threads: Threads of ONNX Runtime; 0 takes all cores. Torch's own threads are set in torch.

        Raises:
            CheckpointError: If it is not an export, is incomplete, or was changed.
            UnavailableError: If a package that it needs is missing, such as ONNX Runtime.
        """
        manifest = read_export(folder)
        refuse_precision(Path(folder), precision)
        return cls(
            manifest.open(Path(folder), precision=precision, threads=threads),
            manifest.label_names,
            batch_size=batch_size,
            calibration=manifest.exits,
            decision=read_decision(manifest.label_names, manifest.decision),
            cleaning=manifest.cleaning,
        )

    @classmethod
    def from_run(
        cls, run: Path | str, *, precision: str | None = None, batch_size: int = DEFAULT_BATCH_SIZE
    ) -> Classifier:
        """Reads a finished run folder; see `from_export`. Without a precision it computes in that of the run.

        Raises:
            CheckpointError: If the folder is not a finished run of ours, or its model is damaged.
            ConfigurationError: If the model is linear, and a precision was given.
        """
        record = read_run(Path(run))
        refuse_precision(Path(run), precision)
        engine = load_engine(
            sealed_model(Path(run)),
            precision=precision,
            preferred=record.environment.precision,
            **recorded_reading(record.config),
        )
        names = record.data.label_names
        return cls(
            engine,
            names,
            batch_size=batch_size,
            decision=read_decision(names, record.decision),
            cleaning=recorded_cleaning(record.config),
        )

    @property
    def computation(self) -> Computation:
        """Precision of the stored weights and of the computation, engine and device."""
        return self.engine.computation

    @property
    def calibrated_rule(self) -> ExitRule | None:
        """The calibrated exit rule of the export, if it has one."""
        return None if self.calibration is None else self.calibration.exit_rule

    def stop_early(self, rule: ExitRule | None = None) -> None:
        """Turns early exits on for all later predictions.

        With torch, compute in FP32 on a CPU: the rest of a batch has another size after each exit, and half precision
        compiles a kernel for every size.

        Args:
            rule: When a text stops; none takes the calibrated rule of the export (``recurra export``).

        Raises:
            ConfigurationError: If the model has no such exit, is not a Transformer, or no rule is given and the model
                has none.
        """
        if rule is None:
            self._check_may_leave()
            rule = self._calibrated()
        self.check_rule(rule)
        self._rule = rule

    def trace(self, texts: Sequence[str]) -> Trace:
        """Returns the predictions for texts after each recurrence, and where the texts would stop.

        The rule is that of `stop_early`, else the calibrated one. All recurrences are computed, whatever the rule says.
        For a model without recurrences, such as the linear control, it raises `ConfigurationError`.
        """
        trace = self.classify(texts, rule=self._rule or self.calibrated_rule, trace=True).trace
        assert trace is not None
        return trace

    def classify(self, texts: Sequence[str], *, rule: ExitRule | None = None, trace: bool = False) -> Classified:
        """Returns probabilities, recurrences taken, and a trace if asked for.

        Args:
            rule: When a text stops, regardless of `stop_early`; none computes all recurrences.
            trace: Whether to return the predictions after each recurrence. All are then computed, and the probabilities
                of each text are those of the recurrence at which the rule would stop it.

        Raises:
            ConfigurationError: If the model has no such exit, or no recurrences.
        """
        if rule is not None:
            self.check_rule(rule)
        if not trace:
            logits, exited_after = self._compute(texts, rule)
            return Classified(self.decision.probabilities(logits), exited_after)
        cleaned, depth = clean_texts(self._checked(texts), self.cleaning), self.engine.depth
        if cleaned or depth is None:
            outputs = self.engine.logits_by_recurrence(cleaned, self.batch_size)
        else:
            outputs = dict.fromkeys(depth.output_after, self._no_logits())
        assert depth is not None
        scores = {number: self._scores(outputs[number]) for number in depth.output_after}
        probabilities = np.stack([self.decision.probabilities(logits) for logits in scores.values()], axis=1)
        stops_after = None if rule is None else depths_under(rule, scores)
        trace_of_all = Trace(depth.output_after, probabilities, depth.own_heads, stops_after)
        if stops_after is None:
            return Classified(probabilities[:, -1], None, trace_of_all)
        stops = probabilities[np.arange(len(cleaned)), np.searchsorted(depth.output_after, stops_after)]
        return Classified(stops, stops_after, trace_of_all)

    def logits(self, texts: Sequence[str], *, clean: bool = True) -> npt.NDArray[np.float32]:
        """Returns scores ``(texts, labels)``, which `Classifier.decision` turns into probabilities.

        Args:
            clean: Whether to clean texts as the training data was cleaned; false if they are clean already.

        Raises:
            TypeError: If ``texts`` is one string, or holds anything but strings.
            DataError: If it has several columns, or a text holds a lone surrogate, which is not a character.
        """
        return self._compute(texts, self._rule, clean=clean)[0]

    def exit_logits(self, texts: Sequence[str]) -> dict[int, npt.NDArray[np.float32]]:
        """Returns scores ``(texts, labels)`` of clean texts by every head with its recurrence, the final one last."""
        depth = self.engine.depth
        if depth is None or not depth.exits or not texts:
            return {1 if depth is None else depth.num_recurrences: self.logits(texts, clean=False)}
        outputs = self.engine.logits_by_recurrence(self._checked(texts), self.batch_size)
        return {number: self._scores(logits) for number, logits in outputs.items()}

    def predict_proba(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """Returns probabilities ``(texts, labels)``."""
        return self.decision.probabilities(self.logits(texts))

    def predict_log_proba(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """Returns natural logarithms of probabilities ``(texts, labels)``; the logarithm of 0 is minus infinity."""
        return log_probabilities(self.predict_proba(texts))

    def predict(self, texts: Sequence[str]) -> npt.NDArray[Any]:
        """Returns the name of the most probable label of each text, ``(texts,)``.

        A multi-label model returns 0 or 1 for each text and each label of ``classes_``, ``(texts, labels)``.
        """
        decided = self.decision.of_logits(self.logits(texts))
        return self.classes_[decided] if self.decision.exclusive else decided.astype(np.int64)

    def are_cut(self, texts: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Which texts are longer than the model reads, ``(texts,)``; raises as `logits` does."""
        texts = self._checked(texts)
        if self.engine.reads_all:
            return np.zeros(len(texts), dtype=np.bool_)
        return self.engine.are_cut(clean_texts(texts, self.cleaning))

    def most_read(self, text: str) -> int | None:
        """Position in a text up to which the model can read at most; none if it may read all of it.

        Every word between spaces with a letter or digit gives at least one token, unless cleaning removes it; most
        texts have more tokens. Marks and invisible characters may give none.
        """
        length = self.engine.max_length
        if self.engine.reads_all or length is None:
            return None
        word_limit = num_words = self.engine.windows * length
        # Of a very long text no more is looked at: each cleaning asks for at most `word_limit` words more.
        words = itertools.islice(re.finditer(r"\S+", text), _CLEANINGS * word_limit + 1)
        ends = [match.end() for match in words]
        for _ in range(_CLEANINGS):
            if num_words >= len(ends):
                break
            beginning = clean_text(text[: ends[num_words - 1]], self.cleaning)
            missing_words = word_limit - sum(_LETTER.search(word) is not None for word in beginning.split())
            if missing_words <= 0:
                return ends[num_words - 1]
            num_words += missing_words
        return None

    def stream(self, chunks: Iterable[Sequence[str]]) -> Iterator[npt.NDArray[np.float64]]:
        """Yields the probabilities of each chunk of texts; holds one chunk at a time."""
        for chunk in chunks:
            yield self.predict_proba(chunk)

    def _scores(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Returns the scores; raises an error unless all are finite, one for each label."""
        if logits.shape[1] != len(self.classes_):
            raise CheckpointError(
                f"the model gives {logits.shape[1]} scores a text, and its record names {len(self.classes_)} labels: "
                "they do not belong together; copy or train it again"
            )
        finite = np.isfinite(logits).all(axis=1)
        if not finite.all():
            raise no_numbers(f" for text {int(finite.argmin()) + 1:,} of {len(logits):,}")
        return logits

    def _compute(
        self, texts: Sequence[str], rule: ExitRule | None, *, clean: bool = True
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64] | None]:
        """Scores, and with a rule also the recurrences that each text took."""
        texts = self._checked(texts)
        if not texts:
            return self._no_logits(), None if rule is None else np.empty(0, dtype=np.int64)
        cleaned = clean_texts(texts, self.cleaning) if clean else texts
        if rule is None:
            return self._scores(self.engine.logits(cleaned, self.batch_size)), None
        logits, exited_after = self.engine.leave_early(cleaned, self.batch_size, rule)
        return self._scores(logits), exited_after

    def _no_logits(self) -> npt.NDArray[np.float32]:
        return np.empty((0, len(self.classes_)), dtype=np.float32)

    @property
    def may_leave(self) -> bool:
        """Whether a text of this model can stop before the last recurrence."""
        with contextlib.suppress(ConfigurationError):
            self._check_may_leave()
            return self.engine.depth is not None and bool(self.engine.depth.exits)
        return False

    def check_rule(self, rule: ExitRule) -> None:
        """Refuses an exit rule that this model cannot follow."""
        self._check_may_leave()
        if self.engine.depth is None:
            raise ConfigurationError(NO_RECURRENCES.format("an exit rule"))
        rule.check(self.engine.depth, self.engine.depth.labels)

    def _check_may_leave(self) -> None:
        if not self.decision.exclusive:
            raise ConfigurationError(
                "an exit rule needs a model that gives each text one label, and this one gives any number; "
                "leave the rule out: texts take all recurrences"
            )
        if self.engine.depth is not None:
            self.engine.depth.check_one_window()
            if self.engine.depth.counted:
                raise ConfigurationError(
                    "an exit rule is not for a model with tokens_without_recurrence, which sets the recurrences of "
                    "each text itself; leave the rule out"
                )

    def _calibrated(self) -> ExitRule:
        if (rule := self.calibrated_rule) is not None:
            return rule
        if self.calibration is None:
            reason = "export a run that was trained with exits"
        elif not self.calibration.rows:
            reason = (
                "this export was made without the run's own rows and was not calibrated; export it again where the "
                "data are (recurra export RUN --data-root DIR)"
            )
        else:
            reason = (
                f"no threshold kept {self.calibration.asked:.4g} of the labels when this export was calibrated; ask "
                "for less (recurra export RUN --agreement 0.98)"
            )
        raise ConfigurationError(f"no exit rule is given and this model has none: {reason}, or name a rule")

    @staticmethod
    def _checked(texts: Any) -> Sequence[str]:
        if isinstance(texts, str):
            raise TypeError("texts is one string; give a list of texts")
        if not hasattr(texts, "__len__"):
            raise TypeError(f"texts is a {type(texts).__name__}; give a list of texts, or chunks of them to stream()")
        listed: Sequence[str] = texts if isinstance(texts, list | tuple) else one_dimension(texts, "texts")
        check_texts(listed)
        return listed


def log_probabilities(probabilities: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Natural logarithms; the logarithm of 0 is minus infinity."""
    with np.errstate(divide="ignore"):
        return np.log(probabilities)
