"""Training: the same numbers from the same seed, also after a kill; nothing is pickled; averages, auxiliary labels."""

from __future__ import annotations

import json
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
from recurra.training import fit as fit_module
from recurra.training.distillation import RowLoss, TaughtCollator
from recurra.training.fit import classifier_beside, train_auxiliary, train_transformer
from recurra.training.protocols import ProtocolConfig
from recurra.training.trainer import UNAVERAGED_NAME, WeightAverage
from tiny import tiny_model, tiny_split


def protocol(**values: Any) -> ProtocolConfig:
    settings = {"learning_rate": 5e-3, "batch_size": 16, "max_epochs": 3, "early_stopping_patience": 0}
    return ProtocolConfig(**{"name": "test", **settings, **values})


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
# Nothing counts as an improvement: training ends after epoch 3 of 9.
STOPS_EARLY = {
    "schedule": "plateau", "early_stopping_patience": 2, "early_stopping_threshold": 100.0, "max_epochs": 9,
}  # fmt: skip
# Everything that keeps a state of its own: averages, hidden tokens, a training before the training.
AVERAGED = {
    "schedule": "cosine", "warmup_ratio": 0.1, "gradient_accumulation": 2, "label_smoothing": 0.1,
    "weight_averaging": 0.8, "token_dropout": 0.2, "selection": "accuracy", "auxiliary_epochs": 2,
}  # fmt: skip
PROTOCOLS = {"first": FIRST_IS_BEST, "stops": STOPS_EARLY, "averaged": AVERAGED}


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
    assert results["first"].best_epoch == 1 and len({epoch.learning_rate for epoch in results["first"].history}) == 3
    assert results["stops"].epochs == 3
    assert not any(result.resumed for result in results.values())
    # A finished training keeps its last and its best checkpoint.
    kept = sorted(path.name for path in (uninterrupted["first"] / "checkpoints").iterdir())
    assert kept == ["checkpoint-12", "checkpoint-3"]


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


# Of each protocol one kill is among the fast tests, the same at other moments is not.
@pytest.mark.parametrize(
    "killed",
    one_fast([
        ("first", ["optimiser of checkpoint 2"]), ("first", ["first step"]), ("first", ["middle of epoch 2"]),
        ("first", ["evaluation of epoch 2"]), ("first", ["marker of checkpoint 3"]),
        ("first", ["removal after checkpoint 3"]), ("first", ["end of training"]),
    ]) + one_fast([
        # The first two checkpoints are those of the auxiliary labels.
        ("averaged", ["marker of checkpoint 2", "optimiser of checkpoint 2", "evaluation of epoch 2"]),
        ("averaged", ["middle of epoch 2"]), ("averaged", ["optimiser of checkpoint 3"]),
        ("averaged", ["marker of checkpoint 4", "end of training"]),
    ]) + one_fast([
        # Early stopping remembers how long it has waited.
        ("stops", ["marker of checkpoint 2"]), ("stops", ["marker of checkpoint 3"]), ("stops", ["end of training"]),
    ]),
)  # fmt: skip
def test_a_killed_training_goes_on_as_if_nothing_had_been(
    killed: tuple[str, list[str]], uninterrupted: dict[str, Path], tmp_path: Path
) -> None:
    name, moments = killed
    resumed = check_killed(name, moments, uninterrupted, tmp_path)
    assert name != "first" or resumed.resumed == (moments != ["first step"])


@pytest.mark.parametrize(
    "killed",
    one_fast([
        ("averaged", ["step 23", "middle of epoch 2"]),
        ("averaged", ["step 10", "middle of epoch 2"]),
        ("first", ["middle of epoch 2"]),
    ]),
)  # fmt: skip
def test_a_training_killed_within_an_epoch_goes_on_within_it(
    killed: tuple[str, list[str]], uninterrupted: dict[str, Path], tmp_path: Path
) -> None:
    name, moments = killed
    chosen, options = protocol(**PROTOCOLS[name]), {"checkpoint_minutes": 0.0}
    assert in_a_process(train, tmp_path, chosen, moments[:1], options) == -9
    written = [path.parent.name for path in tmp_path.rglob("epoch.json")]
    # Three steps are an epoch.
    assert any(int(name.rpartition("-")[2]) % 3 for name in written)
    assert check_killed(name, moments[1:], uninterrupted, tmp_path, **options).resumed


def test_nothing_on_disk_is_a_pickle(uninterrupted: dict[str, Path]) -> None:
    files = [path for folder in uninterrupted.values() for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json", ".jsonl"}
    assert [path for path in files if holds_pickle(path)] == []


DECAY = 0.6
AVERAGES = protocol(learning_rate=1e-2, max_epochs=2, weight_averaging=DECAY)


@pytest.mark.parametrize("chosen", [protocol(**FIRST_IS_BEST), AVERAGES], ids=["weights", "averages"])
def test_the_best_epoch_is_what_stays_in_the_model(chosen: ProtocolConfig, tmp_path: Path) -> None:
    model, record = fit(tmp_path, chosen)
    assert record.best_epoch == 1 or chosen is AVERAGES
    best = load_file(tmp_path / "checkpoints" / f"checkpoint-{3 * record.best_epoch}" / "model.safetensors")
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
    assert np.mean(losses) == pytest.approx(min(epoch.validation_loss for epoch in record.history), rel=1e-5)


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


def closed_form(history: list[Tensor], decay: float) -> Tensor:
    """Sum of all weights so far, each times its share; the shares are products of decays, and add up to 1."""
    steps = len(history) - 1
    decays = [min(decay, (1 + step) / (10 + step)) for step in range(1, steps + 1)]
    shares = [(1 - decays[step - 1] if step else 1.0) for step in range(steps + 1)]
    for step in range(steps + 1):
        for later in decays[step:]:
            shares[step] *= later
    assert sum(shares) == pytest.approx(1)
    return sum(share * weight.double() for share, weight in zip(shares, history, strict=True))  # type: ignore[return-value]


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
    monkeypatch.setattr(fit_module, "TimedCheckpoints", lambda: watch)
    train_transformer(
        model, tiny_split(rows=48, seed=1), tiny_split(rows=32, seed=2), AVERAGES,
        folder=tmp_path, seed=0, precision="fp32", reporter=Reporter(quiet=True),
    )  # fmt: skip
    assert len(watch.seen) == 7
    last = tmp_path / "checkpoints" / "checkpoint-6"
    averaged, own = load_file(last / "model.safetensors"), load_file(last / UNAVERAGED_NAME)
    torch.testing.assert_close(
        averaged["classifier.weight"].double(), closed_form(watch.seen, DECAY), atol=1e-6, rtol=0
    )
    assert torch.equal(own["classifier.weight"], watch.seen[-1])
    assert not torch.equal(averaged["classifier.weight"], own["classifier.weight"])


def test_the_averages_are_in_place_for_the_time_only() -> None:
    model = tiny_model()
    average = WeightAverage(model, DECAY)
    before = model.classifier.weight.detach().clone()
    with torch.no_grad():
        model.classifier.weight.add_(1.0)
    parameter = model.classifier.weight
    with pytest.raises(KeyboardInterrupt), average.in_place():
        assert torch.equal(model.classifier.weight, before)
        raise KeyboardInterrupt
    assert model.classifier.weight is parameter
    assert torch.equal(parameter, before + 1)


SPLIT = tiny_split(rows=64, seed=3)
FIVE = replace(SPLIT, labels=np.array([SPLIT[row]["input_ids"][1] * 5 // 40 for row in range(64)], dtype=np.int64))


def learn_first(model: Any, folder: Path) -> bool:
    chosen = protocol(learning_rate=1e-2, max_epochs=1, auxiliary_epochs=8, schedule="constant")
    return train_auxiliary(
        model, FIVE, chosen, folder, seed=0, precision="fp32", change_inputs=None, reporter=Reporter(quiet=True)
    )


def test_a_classifier_beside_another_has_its_encoder_and_a_head_of_its_own() -> None:
    model = tiny_model(exits=[1], heads="separate")
    beside = classifier_beside(model, 5)
    assert beside.model is model.model
    ids = torch.randint(3, 40, (2, 6))
    assert beside(ids).logits.shape == (2, 5) and model(ids).logits.shape == (2, 2)
    assert (model.config.num_labels, model.config.vocab_size) == (2, 40)


def test_the_encoder_learns_the_other_task_and_the_head_stays(tmp_path: Path) -> None:
    model = tiny_model(hidden_dropout=0.0)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert not learn_first(model, tmp_path)
    after = model.cpu().state_dict()
    for name in ("classifier.weight", "classifier.bias"):
        assert torch.equal(after[name], before[name])
    # A linear map of the encoder's first states tells the five classes apart far better than chance, or the fresh one.
    states = []
    with torch.no_grad():
        for row in (FIVE[index] for index in range(len(FIVE))):
            ids = torch.tensor(row["input_ids"][None].astype("int64"))
            states.append(model.eval().model(ids).last_hidden_state[0, 0])
    features = torch.cat([torch.stack(states), torch.ones(len(FIVE), 1)], dim=1).double()
    targets = torch.nn.functional.one_hot(torch.from_numpy(FIVE.labels), 5).double()
    fitted = features @ torch.linalg.lstsq(features, targets).solution
    assert float((fitted.argmax(1).numpy() == FIVE.labels).mean()) > 0.75


def test_what_other_labels_have_taught_is_taken_up(tmp_path: Path) -> None:
    first, second = tiny_model(), tiny_model(seed=7)
    learn_first(first, tmp_path)
    assert learn_first(second, tmp_path)
    ours, theirs = first.model.state_dict(), second.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
