"""The package's surface: cheap to import, and every public name is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import recurra


def loaded_after(code: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after running ``code``."""
    program = f"{code}\nimport sys\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.split())


@pytest.mark.parametrize("code", ["import recurra", "import recurra; dir(recurra)"])
def test_import_loads_nothing_heavy(code: str) -> None:
    heavy = {"torch", "transformers", "datasets", "sklearn", "pandas", "numpy", "pydantic"}
    assert not loaded_after(code) & heavy


def test_the_core_loads_neither_torch_nor_transformers() -> None:
    modules = ["configuration", "environment", "errors", "files", "progress", "record"]
    loaded = loaded_after("; ".join(f"import recurra.core.{name}" for name in modules))
    assert not loaded & {"torch", "transformers", "sklearn", "datasets"}


def test_registration_takes_place_when_transformers_came_earlier() -> None:
    code = "from transformers import AutoConfig; import recurra; print(AutoConfig.for_model('recurra').num_recurrences)"
    assert "2" in loaded_after(code)


@pytest.mark.parametrize("name", recurra.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(recurra, name).__name__ == name
    assert name in dir(recurra)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'recurra' has no attribute 'Recurrent'"):
        recurra.Recurrent
