"""Whether `--answers-right`, and the agreement of early exits, keep their promises on rows that nobody chose by.

Every record of a classifier for one label a text has its predictions of validation and of test rows. A threshold is
chosen on the former, as ``recurra predict --answers-right`` does, and the answers on the latter are counted. A promise
is broken if fewer of them are right than was promised; by chance alone that happens, so one counts as broken beyond
chance where a one-sided exact test at 5 % says so.

Exits need the models: of finished runs a threshold is chosen on validation rows as ``recurra export --confidence 0.95``
does, and the test rows are counted whose label is that of the full model.

    python -m benchmarks.promises [--results results] [--runs runs/elastic/runs] [--json results/bench-promises.json]
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from recurra.core.environment import code_record
from recurra.core.errors import RecurraError
from recurra.core.files import write_json
from recurra.core.packed import run_folders
from recurra.core.record import read_record
from recurra.deployment.decision import read_decision
from recurra.evaluation.metrics import lowest_shown, precision_thresholds
from recurra.evaluation.predictions import read_predictions
from recurra.models.exits.thresholds import calibrate_classifier, depths_under

TARGETS = (0.8, 0.9, 0.95)
LEVEL = 0.05
TEST = "test"
AGREEMENTS, CONFIDENCE = (0.9, 0.95, 0.98, 0.99), 0.95


@dataclass(frozen=True)
class Kept:
    """Outcome of one promise: test rows, answered rows (or all), and rows answered right (or as by the full model).

    ``recurrences`` is the share of all recurrences that rows took; None for answers.
    """

    corpus: str
    target: float
    rows: int
    answered: int
    right: int
    recurrences: float | None = None

    @property
    def broken(self) -> bool:
        """Whether fewer answers are right than was promised."""
        return self.answered > 0 and self.right < self.target * self.answered

    @property
    def beyond_chance(self) -> bool:
        """Whether that many or fewer right answers are improbable if the promise holds."""
        return self.answered > 0 and bool(stats.binom.cdf(self.right, self.answered, self.target) < LEVEL)


def promises(results: Path) -> Iterator[Kept]:
    """Every promise that the records under a folder can make and check."""
    for study in sorted(path.parent for path in results.glob("*/records.jsonl")):
        for run in run_folders(study):
            try:
                record = read_record(run)
                decision = read_decision(record.data.label_names, record.decision)
                rows, chosen_by = read_predictions(run, TEST), read_predictions(run, record.data.selection_split)
            except (RecurraError, AttributeError):
                continue  # a language model, several labels a text, or no test rows
            if record.data.selection_split == TEST:
                continue
            probabilities = decision.probabilities(rows.logits)
            answers, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
            compared = precision_thresholds(decision.probabilities(chosen_by.logits), chosen_by.labels)
            for target in TARGETS:
                chosen = lowest_shown(compared, target)
                if chosen is None:
                    continue  # nothing is promised
                is_answered = confidence >= chosen.threshold
                right = int((answers == rows.labels)[is_answered].sum())
                yield Kept(record.data.name, target, len(rows), int(is_answered.sum()), right)


def exit_promises(runs: Path, data_root: Path | None) -> Iterator[Kept]:
    """Every promise of early exits that the finished runs in a folder can make and check."""
    from recurra.data.corpora import recorded_split
    from recurra.deployment.engines.trained import TransformerEngine

    for run in sorted(path.parent for path in runs.glob("*/record.json")):
        record = read_record(run)
        if not (run / "model").is_dir() or not any(part.exit_accuracy for part in record.metrics.values()):
            continue
        engine = TransformerEngine.load(run / "model", max_length=record.config["data"]["max_length"], precision="fp32")
        logits, fresh = (
            engine.logits_by_recurrence(recorded_split(record, name, data_root).texts, 256)
            for name in (record.data.selection_split, TEST)
        )
        numbers = sorted(fresh)
        labels = np.stack([fresh[number].argmax(-1) for number in numbers])
        for agreement in AGREEMENTS:
            rule = calibrate_classifier(logits, agreement, confidence=CONFIDENCE).rule
            if rule is None:
                continue  # nothing is promised
            depths = depths_under(rule, fresh)
            exit_labels = labels[np.searchsorted(numbers, depths), np.arange(len(depths))]
            same = int((exit_labels == labels[-1]).sum())
            share = float(depths.mean() / numbers[-1])
            yield Kept(record.data.name, agreement, len(depths), len(depths), same, share)


def table(checked: Sequence[Kept]) -> list[dict[str, float | int | str]]:
    """A row a corpus and target, and one of all corpora."""
    groups: dict[tuple[str, float], list[Kept]] = defaultdict(list)
    for promise in checked:
        groups[promise.corpus, promise.target].append(promise)
        groups["all", promise.target].append(promise)
    return [
        {
            "corpus": corpus,
            "promised": target,
            "promises": len(members),
            "answered": sum(promise.answered for promise in members) / sum(promise.rows for promise in members),
            "right": sum(promise.right for promise in members) / max(sum(promise.answered for promise in members), 1),
            "broken": sum(promise.broken for promise in members),
            "broken_beyond_chance": sum(promise.beyond_chance for promise in members),
            **_depth([promise.recurrences for promise in members if promise.recurrences is not None]),
        }
        for (corpus, target), members in sorted(groups.items())
    ]


def _depth(shares: Sequence[float]) -> dict[str, float]:
    return {"recurrences_of_all": sum(shares) / len(shares)} if shares else {}


def main() -> None:
    """Counts, prints, and writes the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.promises", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of packed studies")
    parser.add_argument("--json", type=Path, help="file for the table")
    parser.add_argument("--runs", type=Path, help="folder of finished runs with exits and their models")
    parser.add_argument("--data-root", type=Path, help="folder of corpora")
    options = parser.parse_args()
    parts = {"rows": table(list(promises(options.results)))}
    if options.runs is not None:
        parts["exits"] = table(list(exit_promises(options.runs, options.data_root)))
    for row in [row for rows in parts.values() for row in rows]:
        print(" | ".join(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    if options.json is not None:
        write_json(options.json, {"code": code_record().model_dump(), **parts})


if __name__ == "__main__":
    main()
