"""What the committed records give, as identities and numbers: ``python tests/golden/kept_numbers.py`` writes both.

``identities.csv`` has the configuration hash of every run, computed anew; ``numbers.csv`` the figures of every result
and contrast. How a report writes them is no part of it: that may change without a word.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
HERE = Path(__file__).parent
IDENTITIES, NUMBERS = HERE / "identities.csv", HERE / "numbers.csv"
# Of the long table of results, which measures are held; loss where nothing before it is there.
MEASURES = ("accuracy", "f1", "macro_f1", "micro_f1", "loss", "word_perplexity")
# Of other tables, what names a row.
NAMES = {"contrasts": ("table", "name"), "pooled": ("name",)}
Row = tuple[str, ...]


def study_names() -> list[str]:
    """Every study with committed records."""
    return sorted(path.name for path in RESULTS.iterdir() if path.is_dir())


def study_numbers(name: str) -> tuple[list[Row], list[Row]]:
    """Reports a study in a folder that is removed afterwards."""
    from recurra.reported_study import report_records

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / name
        outcomes = report_records(RESULTS / name, output, command="").outcomes
        identities = [(name, outcome.config.run_id, outcome.config.config_hash) for outcome in outcomes]
        numbers = [*_results(name, output / "tables" / "results.csv")]
        for table in NAMES:
            numbers += _contrasts(name, output / "tables" / f"{table}.csv")
    return sorted(identities), sorted(numbers)


def _results(study: str, file: Path) -> Iterator[Row]:
    models: dict[str, dict[str, str]] = {}
    for row in _rows(file):
        if not row["seed"] and row["split"] and row["measure"] in MEASURES:
            values = models.setdefault(" / ".join(row[key] for key in ("table", "model", "split")), {})
            values[row["measure"]] = row["value"]
            if row["measure"] == "accuracy":
                values |= {"accuracy_low": row["low"], "accuracy_high": row["high"]}
    order = (MEASURES[0], "accuracy_low", "accuracy_high", *MEASURES[1:])
    for named, values in models.items():
        labels = "accuracy" in values or "micro_f1" in values
        yield study, "results", named, _text(values, [key for key in order if not (labels and key == "loss")])


def _contrasts(study: str, file: Path) -> Iterator[Row]:
    for row in _rows(file):
        named = " / ".join(row[key] for key in NAMES[file.stem])
        yield study, file.stem, named, _text(row, ["gap", "low", "high", "p"])


def _rows(file: Path) -> list[dict[str, str]]:
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _text(row: dict[str, str], measures: list[str]) -> str:
    # Another processor or mathematical library may give another last digit.
    return " ".join(f"{measure}={float(row[measure]):.6g}" for measure in measures if row.get(measure))


def read(path: Path) -> dict[str, list[Row]]:
    """Rows of a kept file by study."""
    rows: dict[str, list[Row]] = {}
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.reader(stream):
            rows.setdefault(row[0], []).append(tuple(row))
    return rows


def main() -> None:
    """Writes both files anew."""
    both = [study_numbers(name) for name in study_names()]
    for path, which in ((IDENTITIES, 0), (NUMBERS, 1)):
        with path.open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows(row for study in both for row in study[which])


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    main()
