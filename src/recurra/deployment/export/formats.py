"""The formats that a run can be exported as, and the precisions of weights. Imports nothing heavy.

Help texts, manifests, studies, reports and the server read `FORMATS`, so methods import torch, onnx and the like when
they are called.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import shutil
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from recurra.core.errors import AuditError, ConfigurationError, UnavailableError, unknown
from recurra.core.files import write_json
from recurra.data.cleaning import browser_steps, recorded_cleaning
from recurra.deployment.onnx import CONFIDENCES, ENTROPIES, MODEL_NAME
from recurra.models.controls import LINEAR_NAME
from recurra.models.names import FOREIGN_MODEL_TYPE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from recurra.core.record import LabelRunRecord
    from recurra.deployment.engines.trained import TransformerEngine
    from recurra.models.controls.linear import LinearModel

# Protobuf holds no more.
_MOST_ONNX_BYTES = 2**31 - 1
# File name that transformers expects.
_SAFETENSORS_NAME = "model.safetensors"
# Configuration values that the ONNX graph supports; other classifiers are exported as safetensors.
_GRAPH_TAKES: dict[str, tuple[object, ...]] = {
    "norm": ("rms", "layer"),
    "attention_bias": (True,),
    "embedding_norm": (True,),
    "embedding_cycles": (0,),
}


@dataclass(frozen=True)
class StoredPrecision:
    """A precision of stored weights. Below these bounds an export is broken rather than rounded.

    Attributes:
        least_agreement: Share of labels that must agree with those of the run's model.
        logit_tolerance: Largest difference of a logit from the run's, as a share of the largest; none for no check.
        most_lost_points: Points of accuracy that may be lost if true labels are known; none for no check.
    """

    name: str
    bits: int
    least_agreement: float
    logit_tolerance: float | None = None
    most_lost_points: float | None = None


# An FP32 export may only differ in the order of sums.
FP32 = StoredPrecision("fp32", 32, least_agreement=0.999, logit_tolerance=1e-3)
BF16 = StoredPrecision("bf16", 16, least_agreement=0.95)
FP16 = StoredPrecision("fp16", 16, least_agreement=0.98)
INT8 = StoredPrecision("int8", 8, least_agreement=0.95, most_lost_points=0.5)


class ExportFormat(ABC):
    """A way to store our classifiers; `recurra.deployment.export.manifest.StoredModel` reads them.

    The tokenizer, the run's record, the card (``templates/README.md.j2``, which says how other programs read the
    folder) and the manifest are written in the same way for every format.
    """

    name: ClassVar[str]
    precisions: ClassVar[tuple[StoredPrecision, ...]]
    weight_files: ClassVar[tuple[str, ...]]
    needs_torch: ClassVar[bool]
    # Linear models, alone or beside an encoder.
    takes_linear: ClassVar[bool] = True
    # A larger folder is written, and a note says so.
    most_mib: ClassVar[float] = math.inf
    packages: ClassVar[tuple[str, ...]] = ()
    install: ClassVar[str] = ""

    @abstractmethod
    def write(self, engine: TransformerEngine, record: LabelRunRecord, precision: str, folder: Path) -> None:
        """Writes weights and configuration of a run's model; the engine has it in FP32."""

    @abstractmethod
    def write_linear(self, model: LinearModel, folder: Path) -> None:
        """Writes a linear model in FP32, with everything it needs to read texts."""

    def check_model(self, config: object) -> None:  # noqa: B027 - safetensors takes every configuration
        """Refuses a model that the format cannot store, by its `recurra.models.configuration.RecurraConfig`."""

    def check_packages(self) -> None:
        """Checks, without importing them, that the packages that `write` needs are installed."""
        for package in self.packages:
            if importlib.util.find_spec(package) is None:
                raise UnavailableError(
                    f"the format {self.name} needs the package {package}; pip install '{self.install}'"
                )


class SafetensorsFormat(ExportFormat):
    """A folder that transformers reads; a linear model in it is only read by us, without torch."""

    name = "safetensors"
    precisions = (FP32, BF16, FP16)
    weight_files = (_SAFETENSORS_NAME, LINEAR_NAME)
    needs_torch = True

    def write(self, engine: TransformerEngine, record: LabelRunRecord, precision: str, folder: Path) -> None:  # noqa: ARG002
        write_safetensors(engine.model, precision, folder)
        if (words := getattr(engine, "words", None)) is not None:
            words.save(folder)

    def write_linear(self, model: LinearModel, folder: Path) -> None:
        model.save(folder)


def write_safetensors(model: PreTrainedModel, precision: str, folder: Path) -> None:
    """Writes ``config.json`` and ``model.safetensors`` in ``precision``; raises `AuditError` if a weight exceeds it."""
    from recurra.models.inference import PRECISIONS

    stored = copy.deepcopy(model).to(device="cpu", dtype=PRECISIONS[precision])
    for name, weight in stored.state_dict().items():
        if not weight.isfinite().all():
            wider = "fp32" if precision == "bf16" else "fp32 or bf16"
            raise AuditError(
                f"weight '{name}' has values that {precision} cannot hold; nothing was written; export in {wider}"
            )
    stored.save_pretrained(folder)
    # The library makes the file readable only for its owner.
    (folder / _SAFETENSORS_NAME).chmod(0o644)


class OnnxFormat(ExportFormat):
    """A graph in FP32 or int8 that ONNX Runtime computes without torch."""

    name = "onnx"
    precisions = (FP32, INT8)
    weight_files = (MODEL_NAME,)
    needs_torch = False
    packages = ("onnx", "onnxruntime")
    install = "recurra[onnx]"

    def check_model(self, config: object) -> None:
        if _is_foreign(config):
            return
        for key, allowed in _GRAPH_TAKES.items():
            if (value := getattr(config, key)) not in allowed:
                raise ConfigurationError(
                    f"'{key}' of the model is {value!r}; the ONNX graph is written for "
                    f"{' and '.join(map(repr, allowed))} alone; take --format safetensors"
                )

    def write(self, engine: TransformerEngine, record: LabelRunRecord, precision: str, folder: Path) -> None:
        from recurra.deployment.onnx.model import write_onnx, write_traced

        size = 4 * engine.model.num_parameters()
        if precision == "fp32" and size > _MOST_ONNX_BYTES:
            raise ConfigurationError(
                f"the weights have {size / 2**30:.1f} GiB in fp32, and an ONNX file holds less than 2; take "
                "--precision int8 or --format safetensors"
            )
        metadata = {"run_id": record.run_id, "labels": json.dumps(record.data.label_names)}
        if _is_foreign(engine.model.config):
            write_traced(engine.model, precision, folder, metadata)
        else:
            words = getattr(engine, "words", None)
            write_onnx(engine.model, precision, engine.max_length, folder, metadata, words=words)

    def write_linear(self, model: LinearModel, folder: Path) -> None:
        from recurra.deployment.onnx.linear import write_linear

        write_linear(model, folder)


class WebFormat(OnnxFormat):
    """A graph and a page for any static host; the browser computes the graph, and no text is sent."""

    name = "web"
    takes_linear = False
    most_mib = 25

    def write(self, engine: TransformerEngine, record: LabelRunRecord, precision: str, folder: Path) -> None:
        super().write(engine, record, precision, folder)
        _drop_exit_defaults(folder / MODEL_NAME)
        for asset in (Path(__file__).parent / "web").iterdir():
            shutil.copy(asset, folder)
        write_json(folder / "web.json", browser_steps(recorded_cleaning(record.config)))


def _is_foreign(config: object) -> bool:
    """Whether a classifier's layers are transformers' own."""
    return getattr(config, "model_type", "") == FOREIGN_MODEL_TYPE


def _drop_exit_defaults(path: Path) -> None:
    """Removes the default bounds of exits: ONNX Runtime in a browser supports no inputs with defaults."""
    import onnx

    model = onnx.load(path)
    remaining = [value for value in model.graph.initializer if value.name not in (CONFIDENCES, ENTROPIES)]
    if len(remaining) < len(model.graph.initializer):
        del model.graph.initializer[:]
        model.graph.initializer.extend(remaining)
        onnx.save(model, path)


FORMATS: dict[str, ExportFormat] = {item.name: item for item in (SafetensorsFormat(), OnnxFormat(), WebFormat())}


def find_format(name: str) -> ExportFormat:
    """Returns a format by its name."""
    if name not in FORMATS:
        raise ConfigurationError(unknown("export format", name, FORMATS))
    return FORMATS[name]


def find_precision(name: str, precision: str) -> StoredPrecision:
    """Returns a precision of a format."""
    precisions = {item.name: item for item in find_format(name).precisions}
    if precision not in precisions:
        others = [other.name for other in FORMATS.values() if precision in {item.name for item in other.precisions}]
        hint = f"; {precision} is written as {' or '.join(others)}" if others else ""
        raise ConfigurationError(f"{unknown(f'precision of {name} exports', precision, precisions)}{hint}")
    return precisions[precision]


def list_precisions() -> str:
    """Names every format with its precisions, for a help text."""
    return "; ".join(
        f"{item.name}: {', '.join(precision.name for precision in item.precisions)}" for item in FORMATS.values()
    )


def storage_order(name: str, precision: str) -> tuple[int, str, int, str]:
    """Sort key of exports: formats in the order of `FORMATS`, and in each the wider precision first.

    Formats and precisions that are unknown here, because another version wrote them, come last.
    """
    export_format = FORMATS.get(name)
    position = len(FORMATS) if export_format is None else list(FORMATS).index(name)
    bits = {item.name: item.bits for item in export_format.precisions} if export_format else {}
    return position, name, -bits.get(precision, 0), precision
