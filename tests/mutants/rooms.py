"""Which files are changed, and which tests are to notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "src" / "recurra"


@dataclass(frozen=True)
class Room:
    """A part of the source and its tests.

    Attributes:
        files: Patterns below ``src/recurra``.
        tests: Files and folders below ``tests``, or patterns.
        without: Patterns below ``src/recurra`` that are left out: lists of words, and pages.
        most_seconds: Of tests that one mutant is held against.
    """

    files: tuple[str, ...]
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()
    most_seconds: float = 20.0

    def sources(self) -> list[Path]:
        """Its files, relative to the repository, in order."""
        left_out = {path for pattern in self.without for path in SOURCE.glob(pattern)}
        found = {path for pattern in self.files for path in SOURCE.glob(pattern)} - left_out
        return sorted(path.relative_to(REPOSITORY) for path in found)

    def test_files(self) -> list[Path]:
        """Its tests, relative to the repository, in order."""
        tests = REPOSITORY / "tests"
        named = [path for pattern in self.tests for path in tests.glob(pattern)]
        found = {path for name in named for path in (name.rglob("test_*.py") if name.is_dir() else [name])}
        return sorted(path.relative_to(REPOSITORY) for path in found)


ROOMS = {
    "models": Room(
        ("models/**/*.py",),
        (
            "unit/models", "unit/core", "unit/adaptation", "unit/test_answers.py", "unit/study/test_spec.py",
            "unit/study/test_identities.py", "unit/evaluation/test_token_exits.py", "unit/study/test_model_auditing.py",
            "unit/cli/test_listing_commands.py", "unit/tasks/test_multilabel.py",
            "unit/deployment/engines/test_depth.py", "integration/test_pretrained.py",
        ),
    ),
    "data": Room(
        ("data/**/*.py",),
        (
            "unit/data", "unit/core/test_tokenizer_files.py", "unit/evaluation/test_label_errors.py",
            "unit/tasks/test_multilabel.py", "unit/training/test_windows.py",
            "unit/cli/test_language_data.py", "unit/deployment/engines/test_windows.py",
            "integration/test_estimator.py", "integration/test_windows.py",
        ),
        without=("data/demo_*.py",),
    ),
    "evaluation": Room(
        ("evaluation/**/*.py",),
        (
            "unit/evaluation", "unit/tasks/classification", "unit/tasks/language", "unit/study/test_*auditing.py",
            "unit/data/test_lengths.py",
        ),
    ),
    "deployment": Room(
        (
            "core/sealed.py", "deployment/decision.py", "deployment/export_record.py", "deployment/classifier.py",
            "deployment/prediction/*.py", "deployment/engines/*.py", "deployment/onnx/exits.py",
            "deployment/export/manifest.py", "deployment/export/records.py",
        ),
        (
            "unit/deployment/*.py", "unit/deployment/engines", "unit/deployment/export", "unit/deployment/onnx",
            "unit/deployment/prediction", "unit/cli/test_predict.py", "unit/core/test_*record.py",
            "integration/test_pretrained.py", "integration/test_trained_classifier.py",
            "integration/test_exported_exits.py",
        ),
    ),
    "server": Room(
        tuple(
            f"deployment/serving/{name}.py"
            for name in ("application", "batching", "bodies", "limits", "protocol")
        ),
        ("unit/deployment/serving", "integration/test_server*.py"),
        # Nearly all of them reach nearly all of it.
        most_seconds=60.0,
    ),
}  # fmt: skip
