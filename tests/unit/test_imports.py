"""The package's surface, and what its imports load: nothing heavy before it is needed, and all public names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import recurra
from reviews import write_reviews

HEAVY = {
    "torch", "transformers", "sklearn", "scipy", "numpy", "pandas", "pyarrow", "datasets", "pydantic", "tokenizers",
    "safetensors", "onnx", "onnxruntime", "ray",
}  # fmt: skip
WITHOUT_TRAINING = {"torch", "transformers", "datasets", "ray", "onnxruntime"}
LOADED = {
    "import recurra; dir(recurra)": HEAVY,
    "from recurra.cli.main import main; main(['--help'])": HEAVY - {"pydantic", "safetensors"},
    "import recurra.core.record, recurra.core.environment, recurra.core.progress": {"torch", "sklearn", "datasets"},
    "import recurra.tasks.classification.task, recurra.tasks.language.task": WITHOUT_TRAINING,
    "import recurra.study.worker, recurra.study.timing, recurra.comparison": WITHOUT_TRAINING,
    "import recurra.deployment.export.formats": {"torch", "transformers", "onnx", "onnxruntime", "numpy", "pydantic"},
}


def modules_after(code: str) -> list[str]:
    """Modules that a fresh interpreter has loaded after running some code."""
    program = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize("code", LOADED, ids=["package", "help", "core", "tasks", "study", "export"])
def test_what_is_imported_loads_nothing_that_it_does_not_need(code: str) -> None:
    assert not LOADED[code] & {name.partition(".")[0] for name in modules_after(code)}


@pytest.mark.slow
def test_configurations_need_no_models_of_transformers_and_are_registered_if_it_came_earlier() -> None:
    registered = "import recurra; assert AutoConfig.for_model('recurra').num_recurrences"
    code = f"from transformers import AutoConfig; {registered}; import recurra.tasks.labelling.configuration"
    loaded = modules_after(code)
    assert "torch" in loaded and not {"transformers.modeling_utils", "torch._dynamo"} & {*loaded}


@pytest.mark.slow
def test_a_linear_model_is_trained_and_timed_without_torch(tmp_path: Path) -> None:
    data, run = str(write_reviews(tmp_path / "reviews.csv", 60)), str(tmp_path / "run")
    command = ["train", "--model", "linear", "--data", data, "--output", run, "--quiet"]
    loaded = modules_after(f"from recurra.cli.main import main; assert main({command}) == 0")
    assert not WITHOUT_TRAINING & {*loaded}


def test_every_public_name_can_be_imported_and_an_unknown_one_is_an_attribute_error() -> None:
    assert [getattr(recurra, name).__name__ for name in recurra.__all__] == list(recurra.__all__)
    assert {*recurra.__all__} <= {*dir(recurra)}
    with pytest.raises(AttributeError, match="module 'recurra' has no attribute 'Recurrent'"):
        recurra.Recurrent
