"""Small encoders by plan and by tokens that taught them: ``python -m benchmarks.general --data-root DIR --output DIR``.

Each is made by ``recurra adapt minilm --plan ... --teach ... --tokens N --int8`` with the texts of ``recurra-small``,
and judged by `benchmarks.encoders`. A stopped study goes on with the same command: a training from its checkpoint, and
whoever is judged stays so. ``general.json`` has all of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.encoders import judge
from recurra.cli.main import main as recurra
from recurra.core.environment import code_record, environment_record
from recurra.core.errors import RecurraError
from recurra.core.files import read_json, write_json
from recurra.core.progress import Reporter
from recurra.models.adaptation.source import ADAPTATION_NAME

FILES = ("english_novels/train.parquet", "wikitext-2-v1/train.parquet")
CORPORA = ("yelp_reviews", "amazon_reviews")
APART = ("sst2", "product_reviews", "yelp_sentences")
WIDTH = 128
PLANS = ("0 5", "0 (5)x3", "0 3 5", "0 (4)x2 5", "0 3 4 5", "0 (3 4)x2 5")
MILLION = 1_000_000


def teach(plan: str, width: int, tokens: int, data_root: Path, output: Path) -> Path:
    """Makes an encoder if it is not there yet; returns its folder."""
    folder = output / f"{plan.replace(' ', '-')}-{width}-{tokens}"
    if not (folder / ADAPTATION_NAME).exists():
        arguments = ["minilm", "--plan", plan, f"embedding_size={width}", "--tokens", str(tokens), "--int8"]
        for text in (*(str(data_root / file) for file in FILES), *CORPORA):
            arguments += ["--teach", text]
        for corpus in APART:
            arguments += ["--apart", corpus]
        arguments += ["--threads", "1", "--data-root", str(data_root), "--output", str(folder)]
        if (code := recurra(["adapt", *arguments])) != 0:
            raise SystemExit(code)
    return folder


def described(folder: Path, values: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of the record: what ``recurra adapt`` wrote of an encoder, and what it was judged to be worth."""
    adaptation = read_json(folder / ADAPTATION_NAME)
    taught = adaptation["taught"]
    return {
        **{key: adaptation[key] for key in ("plan", "changes", "parameters")},
        **{key: taught[key] for key in ("tokens", "minutes", "history")},
        "weights_sha256": adaptation["weights_sha256"],
        "judged": values,
    }


def judged(folders: Sequence[Path], data_root: Path, seeds: Sequence[int]) -> list[list[dict[str, Any]]]:
    """What each encoder is worth, kept in a file beside its folder."""
    kind = "-".join(map(str, seeds)) or "frozen"
    paths = {folder: folder.with_name(f"{folder.name} {kind}.json") for folder in folders}
    names = [str(folder) for folder, path in paths.items() if not path.exists()]
    if names:
        rows = judge(names, "minilm", data_root, seeds=seeds, reporter=Reporter(quiet=True))
        for name in names:
            of_one = [{**row, "encoder": Path(name).name} for row in rows if row["encoder"] == name]
            write_json(paths[Path(name)], of_one)
    return [read_json(path) for path in paths.values()]


def main() -> int:
    """Teaches all, then judges all, then writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--plans", nargs="+", default=PLANS, metavar="PLAN")
    parser.add_argument("--width", type=int, default=WIDTH, help=f"of the token table (default {WIDTH})")
    parser.add_argument("--tokens", type=int, nargs="+", default=[MILLION], metavar="N")
    parser.add_argument("--fine-tune", type=int, nargs="+", default=[], metavar="SEED", help="once with each seed")
    options = parser.parse_args()
    try:
        wanted = [(plan, tokens) for tokens in options.tokens for plan in options.plans]
        folders = [teach(plan, options.width, tokens, options.data_root, options.output) for plan, tokens in wanted]
        values = judged(folders, options.data_root, options.fine_tune)
        record = {
            "code": code_record().model_dump(mode="json"),
            "environment": environment_record(threads=1, precision="mixed").model_dump(mode="json"),
            "encoders": [described(folder, of_one) for folder, of_one in zip(folders, values, strict=True)],
        }
        write_json(options.output / "general.json", record)
    except RecurraError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
