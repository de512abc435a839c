"""Offline and quiet before anything heavy is imported; the real corpora where they are."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Tiny models gain nothing from threads, and those of several test processes wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"
# Where a command takes all cores, threads that wait by turning keep those they wait for from the cores: several times
# as slow on a busy machine (docs/log.md).
os.environ["OMP_WAIT_POLICY"] = "passive"

# A shell lets what it runs in the background ignore Ctrl-C, and every process that is started from there as well.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from pathlib import Path
from typing import Any

import hypothesis
import pytest

from recurra.cli.main import main
from reviews import Command, Said, snapshot, train_linear, train_tiny

# The same examples every time, and no clock: this suite also runs on machines that are busy with something else.
hypothesis.settings.register_profile("recurra", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("recurra")


def pytest_configure(config: pytest.Config) -> None:
    """Tests that need no accelerator expect that there is none; of several processes each has a core of its own.

    A comparison on two cores starts two workers, which both import for seconds what one of them would need.
    """
    if not config.option.markexpr.startswith("gpu"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    process = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if process and config.option.markexpr == "not slow" and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(process) % len(cores)]})


def pytest_collection_finish() -> None:
    """Lets no collection look at a million objects of libraries again: every training asks for two whole ones."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Nothing that is called leaves torch with other threads: later tests, and a user's program, would suffer."""
    yield
    torch: Any = sys.modules.get("torch")
    left = 1 if torch is None else torch.get_num_threads()
    if left != 1:
        torch.set_num_threads(1)
    assert left == 1, f"torch was left with {left} threads"


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real corpora; skips the test where there is none."""
    root = Path(os.environ.get("RECURRA_DATA_ROOT", ""))
    if not (root / "sst2" / "train.parquet").is_file():
        pytest.skip(f"RECURRA_DATA_ROOT is '{root}', which has no sst2/train.parquet")
    return root


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a tiny recurrent model that knows its texts; nobody writes into it."""
    return train_tiny(tmp_path_factory.mktemp("trained"), "max_epochs=3", "learning_rate=5e-3", "batch_size=8")


@pytest.fixture(scope="session")
def linear_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the linear model; nobody writes into it."""
    return train_linear(tmp_path_factory.mktemp("fitted"))


@pytest.fixture(scope="session")
def onnx_exports(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """ONNX exports of the tiny model by precision; nobody writes into them."""
    from recurra.deployment.export.build import export_run
    from recurra.deployment.export.manifest import ExportOptions

    root = tmp_path_factory.mktemp("onnx")
    for precision in ("fp32", "int8"):
        export_run(run, root / precision, ExportOptions("onnx", precision))
    return {precision: root / precision for precision in ("fp32", "int8")}


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process, asserts its exit code, and returns what it wrote."""

    def run(*arguments: object, code: int = 0) -> Said:
        capsys.readouterr()
        ended = main([str(argument) for argument in arguments])
        said = Said(*capsys.readouterr())
        assert ended == code, said.err
        return said

    return run


@pytest.fixture
def refused(tmp_path: Path, command: Command) -> Callable[..., str]:
    """Runs a command that must be refused and returns its one line; nothing below ``tmp_path`` may change."""

    def run(*arguments: object) -> str:
        before = snapshot(tmp_path)
        out, err = command(*arguments, code=2)
        assert out == ""
        assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n")
        assert "Traceback" not in err
        assert snapshot(tmp_path) == before
        return err

    return run
