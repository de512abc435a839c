"""Exports that a browser runs by itself: an ONNX graph, a page, and the runtime that the page needs."""

from __future__ import annotations

import shutil
from pathlib import Path

from recurra.core.files import write_json
from recurra.data.cleaning import browser_steps, recorded_cleaning
from recurra.deployment.export.formats.interface import ExportSource
from recurra.deployment.export.formats.onnx import OnnxFormat
from recurra.deployment.onnx.contract import CONFIDENCES, ENTROPIES, MODEL_NAME

ASSETS = Path(__file__).parents[1] / "web"
# What the page knows of the model beyond the manifest.
SETTINGS_NAME = "web.json"


class WebFormat(OnnxFormat):
    """A folder for any static host; the page classifies on the visitor's device and sends nothing."""

    name = "web"
    usage = (
        "Put the folder on any static host, or run `python -m http.server` in it and open http://localhost:8000.\n"
        "`index.html` classifies in the browser and sends nothing; `recurra.mjs` is what a page of your own imports.\n"
        'In Python it is an ONNX export: `recurra.Classifier.from_export(".")`. Texts are cleaned ({cleaning})\n'
        "and cut at {max_length} tokens in both; token {pad_token_id} fills."
    )
    linear_usage = None

    def write(self, source: ExportSource, precision: str, folder: Path) -> None:
        """Writes the graph, the page, the runtime, and the steps of cleaning as the page reads them."""
        super().write(source, precision, folder)
        _without_defaults(folder / MODEL_NAME)
        for asset in ASSETS.iterdir():
            shutil.copy(asset, folder)
        write_json(folder / SETTINGS_NAME, browser_steps(recorded_cleaning(source.record.config)))


def _without_defaults(path: Path) -> None:
    """Takes the defaults of what an exit asks out of a graph: ONNX Runtime in a browser takes no input that has one."""
    import onnx

    model = onnx.load(path)
    kept = [value for value in model.graph.initializer if value.name not in (CONFIDENCES, ENTROPIES)]
    if len(kept) == len(model.graph.initializer):
        return
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    onnx.save(model, path)
