"""The package's surface, and what its imports load: nothing heavy before it is needed, and all public names."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import recurra
from reviews import write_reviews

SOURCE = Path(recurra.__file__).parent
HEAVY = {
    "torch", "transformers", "sklearn", "scipy", "numpy", "pandas", "pyarrow", "datasets", "pydantic", "tokenizers",
    "safetensors", "onnx", "onnxruntime", "ray",
}  # fmt: skip
# Imports inside functions that spare a caller no whole library, but modules of ours that few need.
OF_OURS = {
    ("models.presets", "models.modeling"),
    ("models.presets", "models.language_modeling"),
    ("study.model_auditing", "models.folder"),
    ("tasks.base", "evaluation.latency"),
    ("tasks.labelling.configuration", "models.foreign"),
    ("tasks.labelling.task", "deployment.classifier"),
    ("tasks.labelling.task", "tasks.labelling.evaluation"),
}
# What a start that asks for nothing over a network has no use for.
NETWORK = {"asyncio", "ssl"}
WITHOUT_TRAINING = {"torch", "transformers", "datasets", "ray", "onnxruntime"}
LOADED = {
    "import recurra; dir(recurra)": HEAVY | NETWORK,
    "from recurra.cli.main import main; main(['--help'])": HEAVY - {"pydantic", "safetensors"} | NETWORK,
    "import recurra.core.record, recurra.core.environment, recurra.core.progress": {"torch", "sklearn", "datasets"}
    | NETWORK,
    "import recurra.tasks.classification.task, recurra.tasks.language.task": WITHOUT_TRAINING,
    "import recurra.study.worker, recurra.study.timing, recurra.comparison": WITHOUT_TRAINING,
    "import recurra.evaluation.audits.registry": {"torch", "sklearn"},
    "import recurra.deployment.export.formats": {"torch", "transformers", "onnx", "onnxruntime", "numpy", "pydantic"},
}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


def imports_of(tree: ast.Module) -> Iterator[str]:
    """What a module imports when it is imported itself, with names that may be modules."""
    nodes = [part for node in tree.body for part in (node.body if isinstance(node, ast.Try) else [node])]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names))


@cache
def heavy_of(name: str) -> set[str]:
    """The heavy libraries that importing one of our modules loads, by all that it imports in turn."""
    waiting, seen, found = [name], set[str](), set[str]()
    while waiting:
        module = waiting.pop()
        if module not in seen and module in TREES:
            seen.add(module)
            waiting.append(module.rpartition(".")[0])
            for imported in imports_of(TREES[module]):
                first, _, ours = imported.partition(".")
                waiting += [ours] if first == "recurra" else []
                found |= {first} & HEAVY
    return found


def late_imports() -> Iterator[tuple[str, str]]:
    """Modules of ours that import others of ours inside a function; a command imports what it needs when it runs."""
    for name, tree in TREES.items():
        functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        for function in functions if not name.startswith("cli.") else ():
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("recurra."):
                    yield name, str(node.module).removeprefix("recurra.")


def test_an_import_inside_a_function_spares_its_callers_a_heavy_library() -> None:
    needless = {pair for pair in late_imports() if not heavy_of(pair[1]) - heavy_of(pair[0])}
    assert needless == OF_OURS, "import it at the top of the module, or list it; or take off the list what has gone"


def modules_after(code: str) -> list[str]:
    """Modules that a fresh interpreter has loaded after running some code."""
    program = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize("code", LOADED, ids=["package", "help", "core", "tasks", "study", "registry", "export"])
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
