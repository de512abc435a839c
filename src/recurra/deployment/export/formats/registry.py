"""The formats that a run can be exported as, and questions about them. Imports nothing heavy.

A format is registered here, by one line below, and known everywhere.
"""

from __future__ import annotations

from recurra.core.errors import ConfigurationError, unknown
from recurra.deployment.export.formats.interface import ExportFormat, StoredPrecision
from recurra.deployment.export.formats.onnx import OnnxFormat
from recurra.deployment.export.formats.safetensors import SafetensorsFormat
from recurra.deployment.export.formats.web import WebFormat

FORMATS: dict[str, ExportFormat] = {}


def register(export_format: ExportFormat) -> None:
    """Makes a format known by its name, in this process; to be called before a manifest or a study names it.

    Raises:
        ConfigurationError: If the name is taken.
    """
    if export_format.name in FORMATS:
        raise ConfigurationError(f"two export formats are called '{export_format.name}'; give one another name")
    FORMATS[export_format.name] = export_format


register(SafetensorsFormat())
register(OnnxFormat())
register(WebFormat())


def find_format(name: str) -> ExportFormat:
    """Returns a format by its name.

    Raises:
        ConfigurationError: If there is none.
    """
    if name not in FORMATS:
        raise ConfigurationError(unknown("export format", name, FORMATS))
    return FORMATS[name]


def find_precision(name: str, precision: str) -> StoredPrecision:
    """Returns a precision of a format.

    Raises:
        ConfigurationError: If there is no such format, or it does not have the precision: what is allowed.
    """
    own = {item.name: item for item in find_format(name).precisions}
    if precision not in own:
        others = [other.name for other in FORMATS.values() if precision in {item.name for item in other.precisions}]
        hint = f"; {precision} is written as {' or '.join(others)}" if others else ""
        raise ConfigurationError(f"{unknown(f'precision of {name} exports', precision, own)}{hint}")
    return own[precision]


def list_precisions() -> str:
    """Names every format with its precisions, for a help text."""
    return "; ".join(
        f"{item.name}: {', '.join(precision.name for precision in item.precisions)}" for item in FORMATS.values()
    )


def storage_order(name: str, precision: str) -> tuple[int, str, int, str]:
    """Sorts exports as a reader asks for them: formats as they are registered, in each the wider precision first.

    What is not known here, because another version wrote it, comes last.
    """
    found = FORMATS.get(name)
    place = len(FORMATS) if found is None else list(FORMATS).index(name)
    bits = {item.name: item.bits for item in found.precisions} if found else {}
    return place, name, -bits.get(precision, 0), precision


def storage_label(name: str, precision: str) -> str:
    """What tables call an export that is stored so."""
    return f"{name} {precision}"
