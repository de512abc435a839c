"""Training: the same numbers from the same seed, also after a kill; nothing is pickled; averages, auxiliary labels."""

from __future__ import annotations

import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import TrainerCallback

from interrupted import in_a_process, one_fast, train
from recurra.core.errors import RunError, StorageError
from recurra.core.files import read_json
from recurra.core.progress import Reporter
from recurra.core.record import TrainingRecord
from recurra.data.batching import Collator, LengthGroupedBatchSampler
from recurra.training import trainer as trainer_module
from recurra.training.distillation import RowLoss, TaughtCollator
from recurra.training.fit import train_auxiliary
from recurra.training.protocols import ProtocolConfig
from recurra.training.trainer import UNAVERAGED_NAME, WeightAverage
from tiny import assert_same_gradients, tiny_model, tiny_protocol, tiny_split, train_quietly
from tiny_runs import history


def holds_pickle(path: Path) -> bool:
    """Whether a file is a pickle (protocol 2 or later) or an archive, which is how torch keeps pickles."""
    # A safetensors file may begin with 0x80 too, the length of its header, of which a zero is the third byte.
    return zipfile.is_zipfile(path) or re.match(rb"\x80[\x02-\x05][^\x00]", path.read_bytes()) is not None


def test_a_folder_of_checkpoints_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").touch()
    with pytest.raises(StorageError, match=r"cannot write '.*checkpoints': a file stands where a folder is needed"):
        train_quietly(tmp_path, tiny_model(), tiny_protocol())


PROTOCOLS = {
    # With these, the first epoch of four is the best, the rate is halved twice, and early stopping never comes.
    "first": {"schedule": "plateau", "plateau_patience": 0, "early_stopping_patience": 9, "max_epochs": 4},
    # Nothing counts as an improvement: training ends after epoch 3 of 9.
    "stops": {
        "schedule": "plateau", "early_stopping_patience": 2, "early_stopping_threshold": 100.0, "max_epochs": 9,
    },
    # Everything that keeps a state of its own: averages, hidden tokens, a training before the training.
    "averaged": {
        "schedule": "cosine", "warmup_ratio": 0.1, "gradient_accumulation": 2, "label_smoothing": 0.1,
        "weight_averaging": 0.8, "token_dropout": 0.2, "selection": "accuracy", "auxiliary_epochs": 2,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A training without a kill for each protocol."""
    folders = {name: tmp_path_factory.mktemp(name) for name in PROTOCOLS}
    for name, folder in folders.items():
        assert in_a_process(train, folder, tiny_protocol(**PROTOCOLS[name]), [], {}) == 0
    return folders


def result_of(folder: Path) -> TrainingRecord:
    return TrainingRecord.model_validate(read_json(folder / "training.json"))


def test_the_protocols_are_what_they_are_meant_to_be_and_leave_no_pickle(uninterrupted: dict[str, Path]) -> None:
    results = {name: result_of(folder) for name, folder in uninterrupted.items()}
    assert results["first"].best_epoch == 1 and len({epoch.learning_rate for epoch in results["first"].history}) == 3
    assert results["stops"].epochs == 3
    assert not any(result.resumed for result in results.values())
    # A finished training keeps its last and its best checkpoint.
    kept = sorted(path.name for path in (uninterrupted["first"] / "checkpoints").iterdir())
    assert kept == ["checkpoint-12", "checkpoint-3"]
    files = [path for folder in uninterrupted.values() for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json", ".jsonl"}
    assert [path for path in files if holds_pickle(path)] == []


# Of each protocol one kill is among the fast tests, the same at other moments is not.
@pytest.mark.parametrize(
    "killed",
    one_fast([
        ("first", ["optimiser of checkpoint 2"]), ("first", ["first step"]), ("first", ["middle of epoch 2"]),
        ("first", ["evaluation of epoch 2"]), ("first", ["marker of checkpoint 3"]),
        ("first", ["removal after checkpoint 3"]), ("first", ["end of training"]),
    ]) + one_fast([
        # With checkpoints within epochs. The first two checkpoints are those of the auxiliary labels.
        ("averaged", ["step 23", "middle of epoch 2"], "within"),
        ("averaged", ["step 10", "middle of epoch 2"], "within"), ("first", ["middle of epoch 2"], "within"),
        ("averaged", ["marker of checkpoint 2", "optimiser of checkpoint 2", "evaluation of epoch 2"]),
        ("averaged", ["middle of epoch 2"]), ("averaged", ["optimiser of checkpoint 3"]),
        ("averaged", ["marker of checkpoint 4", "end of training"]),
    ]) + one_fast([
        # Early stopping remembers how long it has waited.
        ("stops", ["marker of checkpoint 2"]), ("stops", ["marker of checkpoint 3"]), ("stops", ["end of training"]),
    ]),
)  # fmt: skip
def test_a_killed_training_goes_on_as_if_nothing_had_been(
    killed: tuple[Any, ...], uninterrupted: dict[str, Path], tmp_path: Path
) -> None:
    name, moments, *within = killed
    chosen, other = tiny_protocol(**PROTOCOLS[name]), uninterrupted[name]
    for number, moment in enumerate(moments):
        options = {"checkpoint_minutes": 0.0} if within else {}
        assert in_a_process(train, tmp_path, chosen, [moment], options) == -9
        assert not (tmp_path / "final.safetensors").exists()
        if within and number == 0:
            # Three steps are an epoch.
            written = [path.parent.name for path in tmp_path.rglob("epoch.json")]
            assert any(int(checkpoint.rpartition("-")[2]) % 3 for checkpoint in written)
    assert in_a_process(train, tmp_path, chosen, [], {}) == 0
    ours, theirs = (load_file(each / "final.safetensors") for each in (tmp_path, other))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert history(tmp_path) == history(other)
    resumed, whole = result_of(tmp_path), result_of(other)
    assert (resumed.epochs, resumed.steps, resumed.best_epoch) == (whole.epochs, whole.steps, whole.best_epoch)
    if name == "first" or within:
        assert resumed.resumed == (moments != ["first step"])


DECAY = 0.6
AVERAGES = tiny_protocol(learning_rate=1e-2, max_epochs=2, weight_averaging=DECAY)


@pytest.mark.parametrize("chosen", [tiny_protocol(**PROTOCOLS["first"]), AVERAGES], ids=["weights", "averages"])
def test_the_best_epoch_is_what_stays_in_the_model(chosen: ProtocolConfig, tmp_path: Path) -> None:
    model = tiny_model()
    record = train_quietly(tmp_path, model, chosen)
    model.cpu()
    assert record.best_epoch == 1 or chosen is AVERAGES
    best = load_file(tmp_path / "checkpoints" / f"checkpoint-{3 * record.best_epoch}" / "model.safetensors")
    for name in best:
        if not name.endswith("token.weight"):
            assert torch.equal(model.state_dict()[name], best[name]), name
    losses = []
    with torch.no_grad():
        for row in tiny_split(rows=32, seed=2).__getitems__(range(32)):
            ids, label = torch.tensor(row["input_ids"][None].astype(np.int64)), torch.tensor([row["labels"]])
            losses.append(float(model.eval()(ids, labels=label).loss))
    assert np.mean(losses) == pytest.approx(min(epoch.validation_loss for epoch in record.history), rel=1e-5)


def test_the_same_seed_gives_the_same_weights_and_every_head_learns_at_drawn_depths(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"num_recurrences": 3, "exits": [1, 2], "heads": "separate"}
    chosen = tiny_protocol(sampled_recurrences=True, label_smoothing=0.1, max_epochs=2)
    first, again, other = (tiny_model(seed=seed, **shape) for seed in (0, 0, 1))
    for number, (model, seed) in enumerate(((first, 0), (again, 0), (other, 1))):
        train_quietly(tmp_path / str(number), model, chosen, seed=seed)
        model.cpu()
    torch.testing.assert_close(again.state_dict(), first.state_dict(), rtol=0, atol=0)
    assert not torch.equal(other.classifier.weight, first.classifier.weight)
    for name, weight in tiny_model(seed=0, **shape).named_parameters():
        assert "classifier" not in name or not torch.equal(weight, first.get_parameter(name)), name


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_training_learns(precision: str, tmp_path: Path) -> None:
    model, split = tiny_model(hidden_dropout=0.0), tiny_split(rows=128, seed=1)
    chosen = tiny_protocol(learning_rate=2e-2, max_epochs=6)
    record = train_quietly(tmp_path, model, chosen, split, split, precision=precision)
    assert record.history[-1].validation_accuracy > 0.85
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert record.tokens_per_s > 0 and record.peak_memory_mib > 10
    assert len((tmp_path / "history.jsonl").read_text(encoding="utf-8").splitlines()) == record.epochs


def test_a_loss_that_is_not_finite_stops_with_one_clear_line(tmp_path: Path) -> None:
    model = tiny_model()
    with torch.no_grad():
        model.classifier.bias[0] = float("nan")
    with pytest.raises(RunError, match=r"the loss is not finite in epoch 1; lower learning_rate or raise precision"):
        train_quietly(tmp_path, model, tiny_protocol())


@pytest.mark.parametrize(("exits", "smoothing"), [([], 0.0), ([], 0.1), ([1], 0.0)])
def test_the_loss_of_weighed_rows_and_its_gradient_are_those_of_rows_that_stand_there_as_often(
    exits: list[int], smoothing: float
) -> None:
    shape = {"hidden_dropout": 0.0, "exits": exits, "exit_loss_weight": 0.3 if exits else 0.0}
    found, wanted = tiny_model(**shape), tiny_model(**shape)
    rows = replace(tiny_split(4), weights=np.array([2, 0, 1, 1], dtype=np.float32))
    batch = TaughtCollator(0)(rows.__getitems__(range(4)))
    loss = RowLoss(label_smoothing=smoothing, exit_loss_weight=shape["exit_loss_weight"])(found, batch)
    loss.backward()
    repeated = Collator(0)(tiny_split(4).__getitems__([0, 0, 2, 3]))
    other = wanted(**repeated)
    # Smoothed as torch defines it, from the logits alone.
    smoothed = torch.nn.functional.cross_entropy(other.logits, repeated["labels"], label_smoothing=smoothing)
    other_loss = smoothed if smoothing else other.loss
    other_loss.backward()
    torch.testing.assert_close(loss, other_loss)
    assert_same_gradients(found, wanted)


def test_tokens_under_a_curriculum_are_those_that_are_read() -> None:
    lengths = np.array([3] * 10 + [9] * 10)
    sampler = LengthGroupedBatchSampler(lengths, 4, 0, curriculum_epochs=2)
    read = 0
    for epoch in range(3):
        sampler.set_epoch(epoch)
        read += sum(int(lengths[rows].sum()) for rows in sampler)
    assert read == sampler.tokens(3) == 20 * 3 + 2 * int(lengths.sum())


def closed_form(history: list[Tensor], decay: float) -> Tensor:
    """Sum of all weights so far, each times its share; the shares are products of decays, and add up to 1."""
    steps = len(history) - 1
    decays = [min(decay, (1 + step) / (10 + step)) for step in range(1, steps + 1)]
    shares = [(1 - decays[step - 1] if step else 1.0) * np.prod(decays[step:]) for step in range(steps + 1)]
    assert sum(shares) == pytest.approx(1)
    return torch.stack([share * weight.double() for share, weight in zip(shares, history, strict=True)]).sum(0)


class Watch(TrainerCallback):
    """Keeps the classifier's weight after every step."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.seen = [model.classifier.weight.detach().clone().cpu()]

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seen.append(self.model.classifier.weight.detach().clone().cpu())


def test_the_average_of_a_training_is_its_closed_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    watch = Watch(model)
    monkeypatch.setattr(trainer_module, "TimedCheckpoints", lambda: watch)
    train_quietly(tmp_path, model, AVERAGES)
    assert len(watch.seen) == 7
    last = tmp_path / "checkpoints" / "checkpoint-6"
    averaged, own = (load_file(last / name)["classifier.weight"] for name in ("model.safetensors", UNAVERAGED_NAME))
    torch.testing.assert_close(averaged.double(), closed_form(watch.seen, DECAY), atol=1e-6, rtol=0)
    assert torch.equal(own, watch.seen[-1]) and not torch.equal(averaged, own)


def test_the_averages_are_in_place_for_the_time_only() -> None:
    model = tiny_model()
    average, parameter = WeightAverage(model, DECAY), model.classifier.weight
    before = parameter.detach().clone()
    with torch.no_grad():
        parameter.add_(1.0)
    with pytest.raises(KeyboardInterrupt), average.in_place():
        assert torch.equal(model.classifier.weight, before)
        raise KeyboardInterrupt
    assert model.classifier.weight is parameter
    assert torch.equal(parameter, before + 1)


SPLIT = tiny_split(rows=64, seed=3)
FIVE = replace(SPLIT, labels=np.array([SPLIT[row]["input_ids"][1] * 5 // 40 for row in range(64)], dtype=np.int64))


def learn_first(model: Any, folder: Path) -> bool:
    chosen = tiny_protocol(learning_rate=1e-2, max_epochs=1, auxiliary_epochs=8, schedule="constant")
    return train_auxiliary(
        model, FIVE, chosen, folder, seed=0, precision="fp32", change_inputs=None, reporter=Reporter(quiet=True)
    )


def test_the_encoder_learns_the_other_task_once_and_the_head_stays(tmp_path: Path) -> None:
    model, later = tiny_model(hidden_dropout=0.0), tiny_model(seed=7)
    before = {name: weight.clone() for name, weight in model.classifier.state_dict().items()}
    assert not learn_first(model, tmp_path)
    model.cpu()
    assert (model.config.num_labels, model.config.vocab_size) == (2, 40)
    torch.testing.assert_close(model.classifier.state_dict(), before, rtol=0, atol=0)
    # What other labels have taught is taken up.
    assert learn_first(later, tmp_path)
    later.cpu()
    torch.testing.assert_close(later.model.state_dict(), model.model.state_dict(), rtol=0, atol=0)
    # A linear map of the encoder's first states tells the five classes apart far better than chance, or the fresh one.
    states = []
    with torch.no_grad():
        for row in FIVE.__getitems__(range(len(FIVE))):
            ids = torch.tensor(row["input_ids"][None].astype("int64"))
            states.append(model.eval().model(ids).last_hidden_state[0, 0])
    features = torch.cat([torch.stack(states), torch.ones(len(FIVE), 1)], dim=1).double()
    targets = torch.nn.functional.one_hot(torch.from_numpy(FIVE.labels), 5).double()
    fitted = features @ torch.linalg.lstsq(features, targets).solution
    assert float((fitted.argmax(1).numpy() == FIVE.labels).mean()) > 0.75
