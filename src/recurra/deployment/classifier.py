"""A trained run as a classifier: text in, label out, in the order of the input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recurra.core.errors import CheckpointError, ConfigurationError, DataError
from recurra.core.record import RECORD_NAME, read_record
from recurra.data.cleaning import clean_texts
from recurra.deployment.calibration import CalibrationRecord
from recurra.deployment.computation import Computation
from recurra.deployment.depth import (
    Classified,
    DeepEngine,
    Depth,
    Trace,
    nobody,
    nothing_heard,
    softmax,
    trace_of,
)
from recurra.deployment.engine import ConcurrentEngine, Engine, load_engine, load_export_engine
from recurra.deployment.manifest import is_export, read_export
from recurra.models.exit_rules import ExitRule

DEFAULT_BATCH_SIZE = 64


class Classifier:
    """Predicts labels of texts, with scikit-learn's conventions.

    Cleaning and tokenisation are those of the training; texts are computed in batches of like length and returned in
    their own order.

    Args:
        engine: Computes logits.
        label_names: Name of each class.
        batch_size: Texts of 32 tokens a batch: more of shorter texts, fewer of longer ones.
        computation: Precision of the stored weights and of the computation, engine and device, where they are known.
        calibration: The exit rule that was chosen for the model as it is stored, where it was.
    """

    def __init__(
        self,
        engine: Engine,
        label_names: Sequence[str],
        *,
        batch_size: int = DEFAULT_BATCH_SIZE,
        computation: Computation | None = None,
        calibration: CalibrationRecord | None = None,
    ) -> None:
        self.engine = engine
        self.calibration = calibration
        self._rule: ExitRule | None = None
        self.computation = computation
        self.classes_: npt.NDArray[np.str_] = np.array(list(label_names), dtype=str)
        self.batch_size = batch_size

    @classmethod
    def open(
        cls,
        folder: Path | str,
        *,
        precision: str | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        threads: int = 0,
    ) -> Classifier:
        """Reads a finished run folder or an export, whichever it is; see `from_run` and `from_export`."""
        if is_export(folder):
            return cls.from_export(folder, precision=precision, batch_size=batch_size, threads=threads)
        return cls.from_run(folder, precision=precision, batch_size=batch_size)

    @classmethod
    def from_export(
        cls,
        folder: Path | str,
        *,
        precision: str | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        threads: int = 0,
    ) -> Classifier:
        """Reads a folder made by ``recurra export``; every file is held against its hash first.

        Args:
            folder: Folder with ``export.json``.
            precision: Precision to compute in: ``fp32`` or ``bf16``, ``fp16`` on an accelerator; none takes that of the
                stored weights, and FP32 for FP16 on a CPU. An ONNX export has its own and no other.
            batch_size: Texts of 32 tokens a batch: more of shorter texts, fewer of longer ones.
            threads: Threads of ONNX Runtime; 0 takes all cores. Those of torch are set in torch.

        Raises:
            CheckpointError: If it is not an export, not whole, or was changed.
            UnavailableError: If it is an ONNX export and ONNX Runtime is not installed.
        """
        manifest = read_export(folder)
        engine = load_export_engine(Path(folder), manifest, precision=precision, threads=threads)
        return cls(
            engine,
            manifest.label_names,
            batch_size=batch_size,
            computation=engine.computation,
            calibration=manifest.exits,
        )

    @classmethod
    def from_run(
        cls, run: Path | str, *, precision: str | None = None, batch_size: int = DEFAULT_BATCH_SIZE
    ) -> Classifier:
        """Reads a finished run folder.

        Args:
            run: Folder with ``record.json`` and ``model/``.
            precision: ``fp32`` or ``bf16``, ``fp16`` on an accelerator; none takes the run's own, and FP32 for FP16 on
                a CPU.
            batch_size: Texts of 32 tokens a batch: more of shorter texts, fewer of longer ones.

        Raises:
            CheckpointError: If the folder is not a finished run of ours, or its model is damaged.
        """
        folder = Path(run)
        if is_export(folder):
            raise CheckpointError(f"'{folder}' is an export, not a run; read it with Classifier.from_export")
        if not (folder / RECORD_NAME).exists() and not (folder / "model").is_dir():
            raise CheckpointError(f"'{folder}' is not a run folder; give a folder made by 'recurra train'")
        record = read_record(folder)
        engine = load_engine(
            folder / "model",
            kind=record.model.kind,
            precision=precision,
            preferred=record.environment.precision,
            max_length=int(record.config["data"]["max_length"]),
        )
        return cls(engine, record.data.label_names, batch_size=batch_size, computation=engine.computation)

    @property
    def depth(self) -> Depth | None:
        """Where the model can be heard; none for one without recurrences, such as the linear control."""
        return self.engine.depth if isinstance(self.engine, DeepEngine) else None

    @property
    def concurrency(self) -> int:
        """How many threads may ask it at once and gain by it; from more than these, or with torch, ask in turns."""
        return self.engine.concurrency if isinstance(self.engine, ConcurrentEngine) else 1

    @property
    def calibrated_rule(self) -> ExitRule | None:
        """The exit rule that the export carries, if it does."""
        return None if self.calibration is None else self.calibration.exit_rule

    def stop_early(self, rule: ExitRule | None = None) -> None:
        """Lets texts leave at the model's exits from now on.

        With torch, compute in FP32 on a CPU: what is left of a batch has another size each time, and half precision
        compiles a kernel for every size.

        Args:
            rule: When a text leaves; none takes the rule that the export was calibrated to (``recurra export``).

        Raises:
            ConfigurationError: If the model has no such exit, is no Transformer, or no rule is given and the model
                carries none.
        """
        rule = self._calibrated() if rule is None else rule
        depth = self._deep("an exit rule").depth
        rule.check(depth, depth.labels)
        self._rule = rule

    def trace(self, texts: Sequence[str]) -> Trace:
        """Returns what the model thinks of texts after each recurrence, and where they would stop.

        The rule is that of `stop_early`, else the calibrated one. Nobody leaves for it: all recurrences are computed.

        Raises:
            ConfigurationError: If the model has no recurrences, as the linear control.
            TypeError: As `logits` does.
            DataError: As `logits` does.
        """
        found = self.classify(texts, rule=self._rule or self.calibrated_rule, trace=True).trace
        assert found is not None
        return found

    def classify(self, texts: Sequence[str], *, rule: ExitRule | None = None, trace: bool = False) -> Classified:
        """Returns probabilities, and how the model came to them.

        Args:
            texts: Texts as they come.
            rule: When a text leaves, whatever `stop_early` said; none goes all the way.
            trace: Whether to say what was thought after each recurrence. All are computed then, and a text that would
                have left has the label that it would have left with.

        Raises:
            ConfigurationError: If the model has no such exit, or no recurrences.
            TypeError: As `logits` does.
            DataError: As `logits` does.
        """
        if rule is None and not trace:
            return Classified(softmax(self._compute(texts, None)))
        engine = self._deep("an exit rule" if rule else "a trace")
        depth = engine.depth
        if rule is not None:
            rule.check(depth, depth.labels)
        cleaned = clean_texts(self._checked(texts))
        if not trace:
            assert rule is not None
            early = engine.leave_early(cleaned, self.batch_size, rule) if cleaned else nobody(depth)
            return Classified(softmax(early.logits), early.exited_after)
        heard = engine.logits_by_recurrence(cleaned, self.batch_size) if cleaned else nothing_heard(depth)
        return trace_of(depth, heard, rule)

    def logits(self, texts: Sequence[str], *, clean: bool = True) -> npt.NDArray[np.float32]:
        """Returns scores ``(texts, labels)`` whose softmax is the probability.

        Args:
            texts: Texts as they come; an empty one is allowed.
            clean: Whether to clean them as the training data was cleaned; false if they are clean already.

        Raises:
            TypeError: If it is one string, or holds something else than strings.
            DataError: If a text holds a lone surrogate, which is no character.
        """
        return self._compute(texts, self._rule, clean=clean)

    def predict_proba(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """Returns probabilities ``(texts, labels)``."""
        return softmax(self.logits(texts))

    def predict(self, texts: Sequence[str]) -> npt.NDArray[np.str_]:
        """Returns the name of the most probable label of each text, ``(texts,)``."""
        return self.classes_[self.logits(texts).argmax(axis=1)]

    def _compute(self, texts: Sequence[str], rule: ExitRule | None, *, clean: bool = True) -> npt.NDArray[np.float32]:
        if not len(self._checked(texts)):
            return np.empty((0, len(self.classes_)), dtype=np.float32)
        cleaned = clean_texts(texts) if clean else texts
        if rule is None:
            return self.engine.logits(cleaned, self.batch_size)
        return self._deep("an exit rule").leave_early(cleaned, self.batch_size, rule).logits

    def _deep(self, what: str) -> DeepEngine:
        if not isinstance(self.engine, DeepEngine):
            raise ConfigurationError(f"{what} needs a Transformer; this model has no recurrences to stop after")
        return self.engine

    def _calibrated(self) -> ExitRule:
        if self.calibration is None:
            raise ConfigurationError(
                "no exit rule is given and this model carries none; export a run that was trained with exits, "
                "or name a rule"
            )
        rule = self.calibrated_rule
        if rule is None and not self.calibration.rows:
            raise ConfigurationError(
                "this export was made without the run's own rows and was not calibrated, so it carries no exit rule; "
                "export it where the data are (--data-root), or name a rule"
            )
        if rule is None:
            raise ConfigurationError(
                f"no threshold kept {self.calibration.asked:.4g} of the labels when this export was calibrated, so it "
                "carries no exit rule; export with a lower --agreement, or name a rule"
            )
        return rule

    @staticmethod
    def _checked(texts: Sequence[str]) -> Sequence[str]:
        if isinstance(texts, str):
            raise TypeError("texts is one string; give a list of texts")
        _check_texts(texts)
        return texts

    def stream(self, chunks: Iterable[Sequence[str]]) -> Iterator[npt.NDArray[np.float64]]:
        """Yields the probabilities of each chunk of texts; holds one chunk at a time."""
        for chunk in chunks:
            yield self.predict_proba(chunk)


def _check_texts(texts: Sequence[str]) -> None:
    """Refuses what no tokenizer takes, without showing it: it may be private."""
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise TypeError(f"text {number:,} of {len(texts):,} is a {type(text).__name__}; give strings")
        if text.isascii():
            continue
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            found, place = f"U+{ord(text[error.start]):04X}", f"at character {error.start + 1:,}"
            raise DataError(
                f"text {number:,} of {len(texts):,} holds the lone surrogate {found} {place}, which is no character: "
                "it was not UTF-8 where it came from; save it as UTF-8"
            ) from None
