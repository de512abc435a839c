"""Imports inside functions: only where a heavy library would be loaded for nothing, and all of them are listed here."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import recurra
from reviews import write_reviews

SOURCE = Path(recurra.__file__).parent

# Module, what it imports when called, and what a caller who does not need it is spared.
ALLOWED = {
    ("", "models.configuration"): "transformers: registered when transformers is imported, not before",
    ("", "models.foreign"): "torch, likewise",
    ("", "models.language_modeling"): "torch, likewise",
    ("", "models.modeling"): "torch, likewise",
    ("comparison", "models.inference"): "torch: asked only where all models start from a pretrained encoder",
    ("data.tables", "data.parquet"): "pyarrow: a CSV file is read without it",
    ("deployment.engines", "deployment.engines.computation"): "numpy: names of formats are help texts",
    ("deployment.engines", "deployment.engines.trained"): "torch: an ONNX export is computed without it",
    ("deployment.engines.computation", "models.controls.linear"): "scikit-learn, likewise",
    ("deployment.engines.trained", "models.controls.linear"): "scikit-learn, likewise",
    ("deployment.export.manifest", "deployment.onnx.engine"): "tokenizers: a safetensors export is read without it",
    ("deployment.export.formats", "deployment.onnx.linear"): "onnx: needed to write, not to run",
    ("deployment.export.formats", "deployment.onnx.model"): "torch and onnx, likewise",
    ("deployment.export.formats", "models.inference"): "torch",
    ("deployment.export.formats", "deployment.onnx.traced"): "torch and onnx, likewise",
    ("deployment.prediction.folder", "models.inference"): "torch: a linear model predicts without it",
    ("deployment.prediction.folder", "models.quiet"): "transformers: an ONNX export is computed without it",
    ("deployment.serving.models", "models.quiet"): "transformers: an ONNX export is served without it",
    ("evaluation.audits.grading", "models.controls.fitting"): "scikit-learn: reports read grades without it",
    ("evaluation.label_errors", "evaluation.encoder_states"): "torch: a linear model judges without it",
    ("models.adaptation.source", "models.adaptation.blocks"): "numpy and safetensors: only e5 is stored in blocks",
    ("study.estimate", "models.inference"): "torch: a plan is shown without it",
    ("study.model_auditing", "models.controls.linear"): "scikit-learn: a Transformer is audited without it",
    ("study.model_auditing", "models.presets"): "transformers: presets are listed without it",
    ("study.model_auditing", "models.folder"): "torch: presets are listed without it",
    ("study.estimate", "models.quiet"): "transformers: a study of linear models is estimated without it",
    ("study.timing", "evaluation.latency"): "torch: importing the module only names its file",
    ("study.run", "models.inference"): "torch: a linear model is fitted without it",
    ("study.run", "models.quiet"): "transformers, likewise",
    ("study.run", "training.fit"): "torch, likewise",
    ("study.timing", "models.inference"): "torch: linear models are timed without it",
    ("study.timing", "models.quiet"): "transformers, likewise",
    ("tasks.multilabel.task", "evaluation.audits.shortcuts"): "scikit-learn: tasks are listed without it",
    ("tasks.labelling.controls", "models.adaptation.convert"): "torch: vectors of pieces are computed once",
    ("tasks.labelling.controls", "tasks.labelling.joined"): "torch: a linear model is fitted without it",
    ("tasks.labelling.training", "tasks.labelling.teacher"): "torch, likewise",
    ("tasks.labelling.training", "models.modeling"): "torch, likewise",
    ("models.presets", "models.modeling"): "the model classes, half of the import: a plan counts operations without",
    ("models.presets", "models.language_modeling"): "likewise",
    ("tasks.run_folder", "models.presets"): "torch, likewise",
    ("tasks.base", "evaluation.latency"): "torch, likewise",
    ("tasks.base", "models.inference"): "torch, likewise",
    # A study is planned and its status shown in a second: what only runs need, tasks import in their methods.
    ("tasks.classification.task", "evaluation.metrics"): "scipy",
    ("tasks.classification.task", "evaluation.predictions"): "pyarrow",
    ("tasks.classification.task", "tasks.classification.exits"): "torch",
    ("tasks.multilabel.task", "evaluation.metrics"): "scipy",
    ("tasks.multilabel.task", "evaluation.predictions"): "pyarrow",
    ("tasks.labelling.task", "deployment.classifier"): "scipy",
    ("tasks.labelling.task", "models.loading"): "torch",
    ("tasks.labelling.task", "models.configuration"): "transformers",
    ("tasks.labelling.task", "models.modeling"): "torch",
    ("tasks.labelling.task", "models.presets"): "transformers",
    ("tasks.labelling.task", "tasks.labelling.controls"): "scikit-learn",
    ("tasks.labelling.task", "tasks.labelling.evaluation"): "pyarrow",
    ("tasks.labelling.task", "tasks.labelling.transformer"): "torch",
    ("tasks.labelling.task", "training.setfit"): "torch",
    ("tasks.language.task", "models.inference"): "torch",
    ("tasks.language.task", "models.language_modeling"): "torch",
    ("tasks.language.task", "models.loading"): "torch",
    ("tasks.language.task", "models.presets"): "transformers",
    ("tasks.language.task", "tasks.language.evaluation"): "torch",
    ("tasks.language.task", "tasks.language.exits"): "torch",
    ("tasks.language.task", "tasks.language.training"): "torch",
    ("tasks.labelling.task", "tasks.labelling.configuration"): "transformers: presets need no look",
    ("tasks.language.task", "data.language.preparation"): "torch: text is described without it",
    ("tasks.language.data", "models.presets"): "transformers: presets need no look",
}


def late_imports() -> Iterator[tuple[str, str]]:
    """Modules of ours that import others of ours inside a function; a command imports what it needs when it runs."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name.startswith("cli."):
            continue
        functions = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if is_function(node))
        for function in functions:
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("recurra."):
                    yield name, str(node.module).removeprefix("recurra.")


def is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def test_imports_inside_functions_are_those_listed() -> None:
    found = set(late_imports())
    assert found - set(ALLOWED) == set(), "import at the top, or list it with what it spares whom"
    assert set(ALLOWED) - found == set(), "no longer there: take it off the list"


@pytest.mark.parametrize(
    "module",
    ["tasks.classification.task", "tasks.language.task", "study.worker", "study.timing", "comparison"],
)
def test_planning_and_reporting_load_no_torch(module: str) -> None:
    assert loads(f"import recurra.{module}") == "set()"


def test_a_linear_model_is_trained_and_timed_without_torch(tmp_path: Path) -> None:
    data, run = str(write_reviews(tmp_path / "reviews.csv")), str(tmp_path / "run")
    command = ["train", "--model", "linear", "--data", data, "--output", run, "--quiet"]
    assert loads(f"from recurra.cli.main import main; assert main({command}) == 0") == "set()"


def loads(code: str) -> str:
    """Which of the heavy libraries are loaded once some code has run."""
    code += "; import sys; print({'torch', 'transformers', 'datasets', 'ray', 'onnxruntime'} & {*sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return found.stdout.splitlines()[-1]
