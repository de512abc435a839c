"""What a format of exports declares and does, and the precisions of weights. Imports nothing heavy."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from recurra.core.errors import ConfigurationError, UnavailableError

if TYPE_CHECKING:
    from recurra.core.record import LabelRunRecord
    from recurra.deployment.engines.interface import LoadedEngine
    from recurra.deployment.engines.trained import TransformerEngine
    from recurra.models.controls.linear import LinearModel


@dataclass(frozen=True)
class StoredPrecision:
    """A precision of stored weights. Below these bounds an export is broken rather than rounded.

    Attributes:
        name: As it is asked for, for example ``fp16``.
        bits: Of a weight.
        least_agreement: Share of labels that must be those of the run's model.
        logit_tolerance: How far a logit may lie from the run's, as a share of the largest; none if that says nothing.
        most_lost_points: Points of accuracy that may be lost where labels are known; none if labels say enough.
    """

    name: str
    bits: int
    least_agreement: float
    logit_tolerance: float | None = None
    most_lost_points: float | None = None


# FP32 may differ in the order of sums alone.
FP32 = StoredPrecision("fp32", 32, least_agreement=0.999, logit_tolerance=1e-3)
BF16 = StoredPrecision("bf16", 16, least_agreement=0.95)
FP16 = StoredPrecision("fp16", 16, least_agreement=0.98)
INT8 = StoredPrecision("int8", 8, least_agreement=0.95, most_lost_points=0.5)


@dataclass(frozen=True, eq=False)
class ExportSource:
    """What is exported.

    Attributes:
        run: The run's folder.
        record: Its record.
        engine: Its model in FP32, with tokenizer.
    """

    run: Path
    record: LabelRunRecord
    engine: TransformerEngine


@dataclass(frozen=True)
class StoredModel:
    """A model as it lies in an export's folder.

    Attributes:
        folder: The export.
        precision: Precision of the stored weights.
        max_length: Tokens after which a text is cut, or a window of it; a linear model reads all of it.
        pad_token_id: Token that fills.
        linear: Whether it is a linear model, which the format's `ExportFormat.write_linear` wrote.
        windows: Most windows that a text is read in.
    """

    folder: Path
    precision: str
    max_length: int
    pad_token_id: int
    linear: bool = False
    windows: int = 1


def refuse_precision(asked: str | None) -> None:
    """Refuses a precision to compute a linear model in.

    Raises:
        ConfigurationError: If one is asked for.
    """
    if asked is not None:
        raise ConfigurationError(f"a linear model is computed in fp64, not in {asked}; leave --precision out")


class ExportFormat(ABC):
    """A way to store a classifier of ours and to predict with what was stored.

    A subclass is declared in a module of its own that imports torch, onnx and the like inside its methods only, and is
    named once in `recurra.deployment.export.formats.registry`. Command line, manifests, studies, reports and the server
    learn of it there. The tokenizer, the run's record, the card and the manifest are written for every format alike.

    Attributes:
        name: What users ask for, also the folder name of a study's exports: lower case letters, digits and hyphens.
        precisions: What the weights can be stored in, the first being the widest.
        weight_files: Files that hold the weights, if they are there.
        carries_exits: Whether what `open` returns is a `deployment.engines.computation.DeepEngine`, so that texts can
            leave at the exits of a model that has them. If not, exports compute all recurrences.
        needs_torch: Whether `open` takes torch and transformers for a Transformer; a linear model never needs them.
        packages: What `write` imports beyond the dependencies of this package.
        install: What pip is told to install them.
        usage: Markdown for the card: how other programs read the folder. ``{cleaning}``, ``{max_length}`` and
            ``{pad_token_id}`` stand for those of the export.
        linear_usage: The same for a linear model; none if the format stores Transformers alone.
        joined_usage: The same for a linear model beside an encoder.
    """

    name: ClassVar[str]
    precisions: ClassVar[tuple[StoredPrecision, ...]]
    weight_files: ClassVar[tuple[str, ...]]
    carries_exits: ClassVar[bool]
    needs_torch: ClassVar[bool]
    packages: ClassVar[tuple[str, ...]] = ()
    install: ClassVar[str] = ""
    usage: ClassVar[str]
    linear_usage: ClassVar[str | None] = None
    joined_usage: ClassVar[str] = '`recurra.Classifier.from_export(".")` in Python.'

    @abstractmethod
    def write(self, source: ExportSource, precision: str, folder: Path) -> None:
        """Writes the model: weights and configuration.

        Args:
            source: The run.
            precision: Name of one of `precisions`.
            folder: Where to write; nothing but the tokenizer lies there.

        Raises:
            AuditError: If the weights do not fit the precision, or what was written is not what was meant.
        """

    def write_linear(self, model: LinearModel, folder: Path) -> None:  # noqa: ARG002 - for those that override it
        """Writes a linear model with all that it reads texts with, in FP32; asked of formats with a `linear_usage`.

        Args:
            model: The run's.
            folder: Where to write; it is empty.
        """
        raise TypeError(f"the format {self.name} has no linear_usage: it stores no linear model")

    @abstractmethod
    def open(self, stored: StoredModel, *, precision: str | None = None, threads: int = 0) -> LoadedEngine:
        """Reads what `write` or `write_linear` wrote.

        Args:
            stored: The model.
            precision: Precision to compute in, if the user asks for one.
            threads: Threads of a computation, where the engine has its own; 0 takes all cores.

        Raises:
            ConfigurationError: If it cannot be computed in that precision.
            UnavailableError: If a package is missing.
            CheckpointError: If the model cannot be read.
        """

    def check_model(self, config: object) -> None:  # noqa: B027 - most formats take every configuration
        """Refuses a model that the format is not made for; this takes all.

        Args:
            config: The model's `recurra.models.configuration.RecurraConfig`.

        Raises:
            ConfigurationError: Naming the key, its value, and what is allowed.
        """

    def check_packages(self) -> None:
        """Looks whether what `write` needs is installed, without importing it.

        Raises:
            UnavailableError: Which package is missing, and what installs it.
        """
        for package in self.packages:
            if importlib.util.find_spec(package) is None:
                raise UnavailableError(
                    f"the format {self.name} needs the package {package}; pip install '{self.install or package}'"
                )
