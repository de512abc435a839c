"""Training: the same numbers from the same seed, also after a kill; nothing is pickled."""

from __future__ import annotations

import gc
import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from interrupted import in_a_process, train
from recurra.core.errors import RunError, StorageError
from recurra.core.files import read_json
from recurra.core.progress import Reporter
from recurra.core.record import TrainingRecord
from recurra.data.batching import Collator, LengthGroupedBatchSampler
from recurra.training.distillation import RowLoss, TaughtCollator
from recurra.training.fit import train_transformer
from recurra.training.protocols import ProtocolConfig
from tiny import tiny_model, tiny_split


@pytest.fixture(scope="module", autouse=True)
def _quick_collections() -> Iterator[None]:
    """Every training ends with collections, and this process has a million objects that are no garbage."""
    gc.freeze()
    yield
    gc.unfreeze()


def protocol(**values: Any) -> ProtocolConfig:
    return ProtocolConfig(
        **{
            "name": "test",
            "learning_rate": 5e-3,
            "batch_size": 16,
            "max_epochs": 3,
            "early_stopping_patience": 0,
            **values,
        }
    )


def fit(
    folder: Path, chosen: ProtocolConfig, *, seed: int = 0, precision: str = "fp32", **model: Any
) -> tuple[Any, TrainingRecord]:
    torch.manual_seed(seed)
    network = tiny_model(seed=seed, **model)
    record = train_transformer(
        network, tiny_split(rows=48, seed=1), tiny_split(rows=32, seed=2), chosen,
        folder=folder, seed=seed, precision=precision, reporter=Reporter(quiet=True),
    )  # fmt: skip
    return network.cpu(), record


def history(folder: Path) -> list[dict[str, float]]:
    """The history but for the clock."""
    lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "wall_s"} for line in lines]


def same_weights(first: Path, second: Path) -> bool:
    ours, theirs = (load_file(folder / "final.safetensors") for folder in (first, second))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def holds_pickle(path: Path) -> bool:
    """Whether a file is a pickle (protocol 2 or later) or an archive, which is how torch keeps pickles."""
    # A safetensors file may begin with 0x80 too, the length of its header, of which a zero is the third byte.
    return zipfile.is_zipfile(path) or re.match(rb"\x80[\x02-\x05][^\x00]", path.read_bytes()) is not None


def test_a_folder_of_checkpoints_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").touch()
    with pytest.raises(StorageError, match=r"cannot write '.*checkpoints': a file stands where a folder is needed"):
        fit(tmp_path, protocol())


# With these, the first epoch of four is the best, the rate is halved twice, and early stopping never comes.
FIRST_IS_BEST = {"schedule": "plateau", "plateau_patience": 0, "early_stopping_patience": 9, "max_epochs": 4}
# Here the third is the best.
THIRD_IS_BEST = {**FIRST_IS_BEST, "learning_rate": 0.05}
COSINE = {"schedule": "cosine", "warmup_ratio": 0.1, "gradient_accumulation": 2, "label_smoothing": 0.1}
# Nothing counts as an improvement: training ends after epoch 3 of 9.
STOPS_EARLY = {
    "schedule": "plateau", "early_stopping_patience": 2, "early_stopping_threshold": 100.0, "max_epochs": 9,
}  # fmt: skip
# Everything that keeps a state of its own: averages, hidden tokens, a training before the training.
AVERAGED = {
    **COSINE, "weight_averaging": 0.8, "token_dropout": 0.2, "selection": "accuracy",
    "auxiliary_epochs": 2,
}  # fmt: skip
PROTOCOLS = {
    "first": FIRST_IS_BEST, "third": THIRD_IS_BEST, "cosine": COSINE, "stops": STOPS_EARLY, "averaged": AVERAGED,
}  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A training without a kill for each protocol."""
    folders = {name: tmp_path_factory.mktemp(name) for name in PROTOCOLS}
    for name, folder in folders.items():
        assert in_a_process(train, folder, protocol(**PROTOCOLS[name]), [], {}) == 0
    return folders


def result_of(folder: Path) -> TrainingRecord:
    return TrainingRecord.model_validate(read_json(folder / "training.json"))


def test_the_protocols_of_these_tests_are_what_they_are_meant_to_be(uninterrupted: dict[str, Path]) -> None:
    results = {name: result_of(folder) for name, folder in uninterrupted.items()}
    assert {name: result.best_epoch for name, result in results.items()} | {"stops": 0, "cosine": 0} == {
        "first": 1, "third": 3, "cosine": 0, "stops": 0, "averaged": results["averaged"].best_epoch,
    }  # fmt: skip
    assert len({epoch.learning_rate for epoch in results["first"].history}) == 3
    assert results["stops"].epochs == 3
    assert not any(result.resumed for result in results.values())


def check_killed(
    name: str, moments: list[str], uninterrupted: dict[str, Path], folder: Path, **options: Any
) -> TrainingRecord:
    """Trains with kills at these moments, one a process, and then without; holds it against the uninterrupted one."""
    chosen = protocol(**PROTOCOLS[name])
    for moment in moments:
        assert in_a_process(train, folder, chosen, [moment], options) == -9
        assert not (folder / "final.safetensors").exists()
    assert in_a_process(train, folder, chosen, [], {}) == 0
    assert same_weights(folder, uninterrupted[name])
    assert history(folder) == history(uninterrupted[name])
    resumed, whole = result_of(folder), result_of(uninterrupted[name])
    assert (resumed.epochs, resumed.steps, resumed.best_epoch) == (whole.epochs, whole.steps, whole.best_epoch)
    return resumed


@pytest.mark.parametrize(
    "moment",
    [
        "first step", "middle of epoch 2", "evaluation of epoch 2", "optimiser of checkpoint 2",
        "marker of checkpoint 3", "removal after checkpoint 3", "end of training",
    ],
)  # fmt: skip
def test_a_killed_training_goes_on_as_if_nothing_had_been(
    moment: str, uninterrupted: dict[str, Path], tmp_path: Path
) -> None:
    resumed = check_killed("first", [moment], uninterrupted, tmp_path)
    assert resumed.resumed == (moment != "first step")


@pytest.mark.parametrize(
    ("name", "moments"),
    [
        ("first", ["middle of epoch 2"]),
        ("averaged", ["step 23", "middle of epoch 2"]),
        ("averaged", ["step 10", "middle of epoch 2"]),
    ],
)
def test_a_training_killed_within_an_epoch_goes_on_within_it(
    name: str, moments: list[str], uninterrupted: dict[str, Path], tmp_path: Path
) -> None:
    chosen, options = protocol(**PROTOCOLS[name]), {"checkpoint_minutes": 0.0}
    assert in_a_process(train, tmp_path, chosen, moments[:1], options) == -9
    written = [path.parent.name for path in tmp_path.rglob("epoch.json")]
    # Three steps are an epoch.
    assert any(int(name.rpartition("-")[2]) % 3 for name in written)
    assert check_killed(name, moments[1:], uninterrupted, tmp_path, **options).resumed


@pytest.mark.parametrize(
    "moments",
    [
        # The first two checkpoints are those of the auxiliary labels.
        ["middle of epoch 2"],
        ["optimiser of checkpoint 3"],
        ["marker of checkpoint 4", "end of training"],
        ["marker of checkpoint 2", "optimiser of checkpoint 2", "evaluation of epoch 2"],
    ],
    ids=", ".join,
)
def test_averages_hidden_tokens_and_auxiliary_labels_go_on_where_they_were(
    moments: list[str], uninterrupted: dict[str, Path], tmp_path: Path
) -> None:
    check_killed("averaged", moments, uninterrupted, tmp_path)


@pytest.mark.parametrize("moment", ["marker of checkpoint 2", "marker of checkpoint 3", "end of training"])
def test_early_stopping_remembers_how_long_it_has_waited(
    moment: str, uninterrupted: dict[str, Path], tmp_path: Path
) -> None:
    check_killed("stops", [moment], uninterrupted, tmp_path)


def test_a_finished_training_keeps_its_last_and_its_best_checkpoint(uninterrupted: dict[str, Path]) -> None:
    kept = {name: sorted(path.name for path in (uninterrupted[name] / "checkpoints").iterdir()) for name in PROTOCOLS}
    assert kept["first"] == ["checkpoint-12", "checkpoint-3"]
    assert kept["third"] == ["checkpoint-12", "checkpoint-9"]


def test_nothing_on_disk_is_a_pickle(uninterrupted: dict[str, Path]) -> None:
    files = [path for folder in uninterrupted.values() for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json", ".jsonl"}
    assert [path for path in files if holds_pickle(path)] == []


def test_the_best_epoch_is_what_stays_in_the_model(tmp_path: Path) -> None:
    model, record = fit(tmp_path, protocol(**FIRST_IS_BEST))
    assert record.best_epoch == 1
    best = load_file(tmp_path / "checkpoints" / "checkpoint-3" / "model.safetensors")
    for name in best:
        if not name.endswith("token.weight"):
            assert torch.equal(model.state_dict()[name], best[name]), name
    split = tiny_split(rows=32, seed=2)
    losses = []
    with torch.no_grad():
        for index in range(len(split)):
            row = split[index]
            ids, label = torch.tensor(row["input_ids"][None].astype(np.int64)), torch.tensor([row["labels"]])
            losses.append(float(model.eval()(ids, labels=label).loss))
    assert np.mean(losses) == pytest.approx(record.history[0].validation_loss, rel=1e-5)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path: Path) -> None:
    chosen = protocol(max_epochs=1)
    runs = [fit(tmp_path / str(number), chosen, seed=seed)[0].state_dict() for number, seed in enumerate((0, 0, 1))]
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])
    assert not torch.equal(runs[0]["classifier.weight"], runs[2]["classifier.weight"])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_training_learns(precision: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = tiny_model(hidden_dropout=0.0)
    split = tiny_split(rows=256, seed=1)
    record = train_transformer(
        model, split, split, protocol(learning_rate=2e-2, max_epochs=6, batch_size=32),
        folder=tmp_path, seed=0, precision=precision, reporter=Reporter(quiet=True),
    )  # fmt: skip
    assert record.history[-1].validation_accuracy > 0.85
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert record.tokens_per_s > 0 and record.peak_memory_mib > 10
    assert len((tmp_path / "history.jsonl").read_text(encoding="utf-8").splitlines()) == record.epochs


def test_a_loss_that_is_not_finite_stops_with_one_clear_line(tmp_path: Path) -> None:
    model = tiny_model()
    with torch.no_grad():
        model.classifier.bias[0] = float("nan")
    with pytest.raises(RunError, match=r"the loss is not finite in epoch 1; lower learning_rate or raise precision"):
        train_transformer(
            model, tiny_split(), tiny_split(), protocol(),
            folder=tmp_path, seed=0, precision="fp32", reporter=Reporter(quiet=True),
        )  # fmt: skip


@pytest.mark.parametrize(("exits", "smoothing"), [([], 0.0), ([], 0.1), ([1], 0.0)])
def test_the_loss_of_weighed_rows_and_its_gradient_are_those_of_rows_that_stand_there_as_often(
    exits: list[int], smoothing: float
) -> None:
    shape = {"hidden_dropout": 0.0, "exits": exits, "exit_loss_weight": 0.3 if exits else 0.0}
    found, wanted = tiny_model(**shape), tiny_model(**shape)
    times = np.array([2, 0, 1, 1], dtype=np.float32)
    rows = replace(tiny_split(4), weights=times)
    batch = TaughtCollator(0)(rows.__getitems__(range(4)))
    loss = RowLoss(label_smoothing=smoothing, exit_loss_weight=shape["exit_loss_weight"])(found, batch)
    loss.backward()
    repeated = Collator(0)(tiny_split(4).__getitems__([0, 0, 2, 3]))
    if smoothing:
        # As torch defines it, from the logits alone.
        logits = wanted(**{key: values for key, values in repeated.items() if key != "labels"}).logits
        log_shares = logits.log_softmax(-1)
        right = log_shares.gather(1, repeated["labels"][:, None])[:, 0]
        other = -((1 - smoothing) * right + smoothing * log_shares.mean(-1)).mean()
    else:
        other = wanted(**repeated).loss
    other.backward()
    torch.testing.assert_close(loss, other)
    for mine, theirs in zip(found.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_training_at_drawn_depths_repeats_itself_and_trains_every_head(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"num_recurrences": 3, "exits": [1, 2], "heads": "separate"}
    runs = [fit(tmp_path / str(run), protocol(sampled_recurrences=True), **shape)[0] for run in range(2)]
    for mine, again in zip(*(model.parameters() for model in runs), strict=True):
        torch.testing.assert_close(mine, again, rtol=0, atol=0)
    new = tiny_model(seed=0, **shape)
    for mine, before in zip(runs[0].exit_classifiers, new.exit_classifiers, strict=True):
        assert not torch.equal(mine.weight, before.weight)


def test_smoothed_labels_train_every_head(tmp_path: Path) -> None:
    network, _ = fit(tmp_path, protocol(label_smoothing=0.1, max_epochs=1), num_recurrences=2, exits=[1])
    before = tiny_model(seed=0, num_recurrences=2, exits=[1])
    for name, weight in before.named_parameters():
        if "classifier" in name:
            assert not torch.equal(weight, network.get_parameter(name)), name


def test_tokens_under_a_curriculum_are_those_that_are_read() -> None:
    lengths = np.array([3] * 10 + [9] * 10)
    sampler = LengthGroupedBatchSampler(lengths, 4, 0, curriculum_epochs=2)
    read = 0
    for epoch in range(3):
        sampler.set_epoch(epoch)
        read += sum(int(lengths[rows].sum()) for rows in sampler)
    assert read == sampler.tokens(3) == 20 * 3 + 2 * int(lengths.sum())
