"""What small encoders keep of the one that they were made of: ``python -m benchmarks.encoders FOLDER ...``.

Each is asked four things, and the encoder that it came from too: how much of that encoder's function it keeps on test
texts (the mean cosine of centred mean states), what a logistic regression on its mean states gets right after 64 and
1,000 labelled rows (five draws of 64, one of 1,000), what its int8 export takes (MiB with the tokenizer; milliseconds
for one text on one thread, in turns with the whole encoder), and with ``--fine-tune 0 1 2`` what it gets right when it
is fine-tuned on as many rows, the mean over the seeds, on all test texts. ``--all-rows 0`` fine-tunes it on all rows of
SST-2 too. Corpora are those of the study ``ladder``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from recurra.cli.main import main as recurra
from recurra.core.errors import RecurraError, RunError
from recurra.core.files import write_json
from recurra.core.progress import Reporter
from recurra.core.record import read_record
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset
from recurra.deployment.classifier import Classifier
from recurra.evaluation.encoder_states import cached_states
from recurra.evaluation.latency import measure_side_by_side
from recurra.models.adaptation.source import find_encoder

CORPORA = ("sst2", "yelp_sentences", "product_reviews")
TEST_ROWS = 1000
PROTOCOLS = {64: "finetune-few", 1000: "finetune-small"}
_DRAWS = {64: 5, 1000: 1}
WITH_ALL_ROWS = "sst2"
TIMED_TEXTS = 200
# Of each label, for a head that learned enough for int8 to keep its labels.
COST_ROWS = 500

States = npt.NDArray[np.float32]


def kept(states: States, whole: States) -> float:
    """Mean cosine of centred states ``(texts, hidden)`` with those of the whole encoder."""
    small, large = states - states.mean(0), whole - whole.mean(0)
    return float(((small * large).sum(1) / (np.linalg.norm(small, axis=1) * np.linalg.norm(large, axis=1))).mean())


def frozen_accuracy(
    train: States, labels: npt.NDArray[Any], test: States, wanted: npt.NDArray[Any], rows: int
) -> float:
    """Mean accuracy of a logistic regression over draws of rows, half of them of each label."""
    scores = []
    for draw in range(_DRAWS[rows]):
        order = np.random.default_rng(draw).permutation(len(labels))
        chosen = np.concatenate([order[labels[order] == label][: rows // 2] for label in (0, 1)])
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.05, max_iter=2000))
        scores.append(model.fit(train[chosen], labels[chosen]).score(test, wanted))
    return float(np.mean(scores))


def _run(*words: object) -> int:
    """Runs a command, silently; 3 is an audit that failed or an export that was refused."""
    with contextlib.redirect_stdout(sys.stderr):
        code = recurra([*map(str, words), "--quiet"])
    if code not in (0, 3):
        raise SystemExit(1)
    return code


def fine_tuned_accuracy(encoder: str, corpus: str, rows: int | None, data_root: Path, seed: int) -> float:
    """Test accuracy of one training by the protocol for so many rows, or for all."""
    asked = ["--protocol", "finetune-large"]
    if rows is not None:
        asked = ["--protocol", PROTOCOLS[rows], f"data.rows_per_label={rows // 2}"]
    with tempfile.TemporaryDirectory() as folder:
        given = ["--model", encoder, "--data", corpus, "--data-root", data_root, "--output", f"{folder}/run"]
        _run("train", *given, *asked, "--seed", seed, "--threads", 1, "--precision", "bf16")
        return float(read_record(Path(folder) / "run").metrics["test"].accuracy)


def deployed(names: Sequence[str], data_root: Path) -> dict[str, dict[str, float]]:
    """What the int8 export of each takes; nothing if it is refused, because int8 changes too many labels."""
    classifiers, mib = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(names):
            run, export = Path(folder) / f"run-{number}", Path(folder) / f"export-{number}"
            given = ["--model", name, "--data", CORPORA[0], "--data-root", data_root, "--output", run, "--threads", 1]
            asked = ["--protocol", "finetune-small", f"data.rows_per_label={COST_ROWS}", "max_epochs=3"]
            _run("train", *given, "--no-latency", *asked)
            asked = ["--format", "onnx", "--precision", "int8", "--data-root", str(data_root)]
            if _run("export", run, *asked, "--output", export):
                if name == names[0]:
                    raise RunError(f"the int8 export of {name} is refused, so nothing can be compared with it")
                continue
            classifiers[name] = Classifier.from_export(export, threads=1)
            mib[name] = sum(path.stat().st_size for path in export.iterdir()) / 2**20
        texts = load_dataset(DataConfig(name=CORPORA[0]), data_root).splits["test"].texts[:TIMED_TEXTS]
        calls = {name: classifier.predict for name, classifier in classifiers.items()}
        latency = measure_side_by_side(calls, [[text] for text in texts], threads=1, precision="int8", scope="text")
    whole = latency[names[0]].median_ms
    costs = {
        name: {"ms": record.median_ms, "times_as_fast": whole / record.median_ms} for name, record in latency.items()
    }
    return {name: {"mib": mib[name], **costs[name]} if name in mib else {} for name in names}


def judge(
    names: Sequence[str],
    of: str,
    data_root: Path,
    *,
    seeds: Sequence[int] = (),
    all_rows_seeds: Sequence[int] = (),
    costs: Mapping[str, dict[str, float]] | None = None,
    reporter: Reporter,
) -> list[dict[str, Any]]:
    """One row per corpus and encoder, fine-tuned with each seed, and one for the encoder that they were made of.

    ``costs`` are what `deployed` returned for all of them.
    """
    results = []
    all_names = list(dict.fromkeys([of, *names]))
    costs = costs or deployed(all_names, data_root)
    for corpus in CORPORA:
        splits = load_dataset(DataConfig(name=corpus), data_root).splits
        train, test = splits["train"], splits["test"]
        order = np.random.default_rng(0).permutation(len(train))
        labels = train.labels[order]
        pool = np.concatenate([order[labels == label][: max(PROTOCOLS) // 2] for label in (0, 1)])
        test_rows = np.random.default_rng(1).permutation(len(test))[:TEST_ROWS]
        whole: States | None = None
        for name in all_names:
            source = find_encoder(name)
            states, train_states = (
                cached_states(source, [split.texts[row] for row in rows], reporter, data=corpus, precision="fp32")
                for split, rows in ((test, test_rows), (train, pool))
            )
            whole = states if whole is None else whole
            result: dict[str, Any] = {"corpus": corpus, "encoder": name, "kept": kept(states, whole), **costs[name]}
            for rows in PROTOCOLS:
                result[f"frozen_{rows}"] = frozen_accuracy(
                    train_states, train.labels[pool], states, test.labels[test_rows], rows
                )
                if seeds and name in names:
                    tuned = [fine_tuned_accuracy(name, corpus, rows, data_root, seed) for seed in seeds]
                    result[f"fine_tuned_{rows}"], result["seeds"] = float(np.mean(tuned)), list(seeds)
            if all_rows_seeds and corpus == WITH_ALL_ROWS and name in names:
                result["fine_tuned_all"] = [
                    fine_tuned_accuracy(name, corpus, None, data_root, seed) for seed in all_rows_seeds
                ]
            sys.stdout.write(json.dumps({key: _short(value) for key, value in result.items()}) + "\n")
            sys.stdout.flush()
            results.append(result)
    return results


def _short(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def main() -> int:
    """Measures, prints a line a corpus and encoder, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("encoders", nargs="+", metavar="FOLDER", help="folders of recurra adapt")
    parser.add_argument(
        "--of", default="minilm", help="the encoder that they were made of; to fine-tune it, name it as well"
    )
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--fine-tune", type=int, nargs="+", default=[], metavar="SEED", help="once with each seed")
    parser.add_argument("--all-rows", type=int, nargs="+", default=[], metavar="SEED", help="the same on all of SST-2")
    options = parser.parse_args()
    try:
        results = judge(
            options.encoders,
            options.of,
            options.data_root,
            seeds=options.fine_tune,
            all_rows_seeds=options.all_rows,
            reporter=Reporter(quiet=True),
        )
    except RecurraError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    if options.output is not None:
        write_json(options.output, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
