"""A trained run as a classifier: text in, label out, in the order of the input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from recurra.core.errors import CheckpointError, ConfigurationError, DataError
from recurra.core.record import RECORD_NAME, read_record
from recurra.data.cleaning import clean_texts
from recurra.deployment.computation import Computation
from recurra.deployment.manifest import ExportManifest, is_export, read_export

if TYPE_CHECKING:
    from recurra.models.exits import ExitRule

DEFAULT_BATCH_SIZE = 64


class Engine(Protocol):
    """What computes logits from cleaned texts."""

    def logits(self, texts: Sequence[str], batch_size: int) -> npt.NDArray[np.float32]:
        """Returns ``(texts, labels)``."""
        ...


@runtime_checkable
class ExitingEngine(Protocol):
    """An engine from whose batches texts can leave early."""

    def stop_early(self, rule: ExitRule) -> None:
        """Sets the rule."""
        ...


class Classifier:
    """Predicts labels of texts, with scikit-learn's conventions.

    Cleaning and tokenisation are those of the training; texts are computed in batches of like length and returned in
    their own order.

    Args:
        engine: Computes logits.
        label_names: Name of each class.
        batch_size: Texts of 32 tokens a batch: more of shorter texts, fewer of longer ones.
        computation: Precision of the stored weights and of the computation, engine and device, where they are known.
    """

    def __init__(
        self,
        engine: Engine,
        label_names: Sequence[str],
        *,
        batch_size: int = DEFAULT_BATCH_SIZE,
        computation: Computation | None = None,
    ) -> None:
        self.engine = engine
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
        return cls(engine, manifest.label_names, batch_size=batch_size, computation=engine.computation)

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

    def stop_early(self, rule: ExitRule) -> None:
        """Lets texts leave at the model's exits from now on, as ``recurra exits`` chose.

        Compute in FP32 on a CPU: what is left of a batch has another size each time, and half precision compiles a
        kernel for every size.

        Raises:
            ConfigurationError: If the model has no such exit, or is not a Transformer that torch computes.
        """
        engine = self.engine
        if not isinstance(engine, ExitingEngine):
            raise ConfigurationError(
                "an exit rule needs a Transformer that torch computes; give a run or an export in safetensors"
            )
        engine.stop_early(rule)

    def logits(self, texts: Sequence[str], *, clean: bool = True) -> npt.NDArray[np.float32]:
        """Returns scores ``(texts, labels)`` whose softmax is the probability.

        Args:
            texts: Texts as they come; an empty one is allowed.
            clean: Whether to clean them as the training data was cleaned; false if they are clean already.

        Raises:
            TypeError: If it is one string, or holds something else than strings.
            DataError: If a text holds a lone surrogate, which is no character.
        """
        if isinstance(texts, str):
            raise TypeError("texts is one string; give a list of texts")
        if not len(texts):
            return np.empty((0, len(self.classes_)), dtype=np.float32)
        _check_texts(texts)
        return self.engine.logits(clean_texts(texts) if clean else texts, self.batch_size)

    def predict_proba(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """Returns probabilities ``(texts, labels)``."""
        return softmax(self.logits(texts))

    def predict(self, texts: Sequence[str]) -> npt.NDArray[np.str_]:
        """Returns the name of the most probable label of each text, ``(texts,)``."""
        return self.classes_[self.logits(texts).argmax(axis=1)]

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


def softmax(logits: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """Returns probabilities over the last axis."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


class LoadedEngine(Engine, Protocol):
    """An engine that was read from disk and says how it computes.

    Attributes:
        computation: Precision of the stored weights and of the computation, engine and device.
    """

    computation: Computation


def load_engine(
    folder: Path, *, kind: str, max_length: int, precision: str | None = None, preferred: str | None = None
) -> LoadedEngine:
    """Reads the model folder of a run or of an export in safetensors.

    Args:
        folder: The model folder.
        kind: ``transformer`` or ``linear``.
        max_length: Tokens after which a text is cut.
        precision: Precision to compute in, if the user asks for one.
        preferred: Precision to compute in otherwise, where the device is good at it; none takes that of the weights.

    Raises:
        CheckpointError: If it is not whole, or not ours.
        ConfigurationError: If ``precision`` is unknown, or FP16 on a CPU.
    """
    if kind == "linear":
        from recurra.deployment.engines import LinearEngine

        return LinearEngine.load(folder)
    from recurra.deployment.engines import TransformerEngine

    return TransformerEngine.load(folder, precision=precision, preferred=preferred, max_length=max_length)


def load_export_engine(
    folder: Path, manifest: ExportManifest, *, precision: str | None = None, threads: int = 0
) -> LoadedEngine:
    """Reads the model of an export whose files are those of its manifest."""
    if manifest.format == "onnx":
        from recurra.deployment.onnx_engine import OnnxEngine

        return OnnxEngine.load(
            folder,
            precision=manifest.precision,
            max_length=manifest.max_length,
            pad_token_id=manifest.pad_token_id,
            requested=precision,
            threads=threads,
        )
    return load_engine(folder, kind="transformer", precision=precision, max_length=manifest.max_length)
