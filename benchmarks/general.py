"""Small encoders by plan, tokens and loss: ``python -m benchmarks.general --data-root DIR --output DIR``.

Each is made as by ``recurra adapt minilm --plan ... --teach ... --tokens N --int8`` with the texts of
``recurra-small``, and judged by `benchmarks.encoders`. Only this study teaches by other losses than that command. A
stopped study goes on with the same command: a training from its checkpoint, and whoever is judged stays so.
``general.json`` has all of it.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.encoders import deployed, judge
from benchmarks.measures import provenance
from recurra.adaptation import AdaptationOptions, adapt
from recurra.core.errors import RecurraError, unknown
from recurra.core.files import read_json, write_json
from recurra.core.progress import Reporter
from recurra.models.adaptation.source import ADAPTATION_NAME, find_encoder
from recurra.training.general_distillation import LOSS, TERMS

FILES = ("english_novels/train.parquet", "wikitext-2-v1/train.parquet")
CORPORA = ("yelp_reviews", "amazon_reviews")
APART = ("sst2", "product_reviews", "yelp_sentences")
WIDTH = 128
PLANS = ("0 5", "0 (5)x3", "0 3 5", "0 (4)x2 5", "0 3 4 5", "0 (3 4)x2 5")
MILLION = 1_000_000
JOINED_BY = "+"
SHIPPED_LOSS = JOINED_BY.join(LOSS)


def teach(plan: str, loss: str, tokens: int, options: argparse.Namespace) -> Path:
    """Makes an encoder if it is not there yet; returns its folder."""
    name = f"{plan.replace(' ', '-')}-{options.width}-{tokens}"
    changes: dict[str, Any] = {"embedding_size": options.width}
    shared = find_encoder(options.encoder).plan(plan)
    if options.sampled and shared.recurrences > 1 and not shared.coda:
        changes["exits"] = list(range(1, shared.recurrences))
        name += "-sampled"
    folder: Path = options.output / (name if loss == SHIPPED_LOSS else f"{name}-{loss}")
    if not (folder / ADAPTATION_NAME).exists():
        asked = AdaptationOptions(
            plan=plan,
            changes=changes,
            teach=[*(str(options.data_root / file) for file in FILES), *CORPORA],
            apart=APART,
            tokens=tokens,
            loss=loss.split(JOINED_BY),
            data_root=options.data_root,
            int8=True,
        )
        adapt(options.encoder, folder, asked, reporter=Reporter())
    return folder


def judge_all(folders: Sequence[Path], options: argparse.Namespace) -> list[list[dict[str, Any]]]:
    """What each encoder is worth, kept in a file beside its folder. Their exports are timed side by side."""
    kind = "-".join(map(str, options.fine_tune)) or "frozen"
    kind += "".join(f" all-{seed}" for seed in options.all_rows)
    paths = {folder: folder.with_name(f"{folder.name} {kind}.json") for folder in folders}
    missing = [folder for folder, path in paths.items() if not path.exists()]
    costs = deployed([options.encoder, *map(str, missing)], options.data_root) if missing else {}
    for folder in missing:
        rows = judge(
            [str(folder)],
            options.encoder,
            options.data_root,
            seeds=options.fine_tune,
            all_rows_seeds=options.all_rows,
            costs=costs,
            reporter=Reporter(quiet=True),
        )
        write_json(paths[folder], [{**row, "encoder": folder.name} for row in rows if row["encoder"] == str(folder)])
    return [read_json(path) for path in paths.values()]


def described(folder: Path, values: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of the record: how an encoder was taught, and what it was judged to be worth."""
    adaptation = read_json(folder / ADAPTATION_NAME)
    taught = {"loss": LOSS, **adaptation["taught"]}
    return {
        **{key: adaptation[key] for key in ("plan", "changes", "parameters")},
        **{key: taught[key] for key in ("loss", "tokens", "minutes", "history")},
        "weights_sha256": adaptation["weights_sha256"],
        "judged": values,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Teaches all, then judges all, then writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--encoder", default="minilm", help="the encoder that all are made of (default minilm)")
    parser.add_argument("--plans", nargs="+", default=PLANS, metavar="PLAN")
    parser.add_argument("--width", type=int, default=WIDTH, help=f"of the token table (default {WIDTH})")
    parser.add_argument("--tokens", type=int, nargs="+", default=[MILLION], metavar="N")
    parser.add_argument(
        "--losses",
        nargs="+",
        default=[SHIPPED_LOSS],
        metavar="LOSS",
        help=f"terms joined by {JOINED_BY}: {', '.join(TERMS)} (default {SHIPPED_LOSS})",
    )
    parser.add_argument(
        "--sampled", action="store_true", help="stop each step after a drawn pass, of plans that end with a loop"
    )
    parser.add_argument("--fine-tune", type=int, nargs="+", default=[], metavar="SEED", help="once with each seed")
    parser.add_argument("--all-rows", type=int, nargs="+", default=[], metavar="SEED", help="the same on all of SST-2")
    options = parser.parse_args(arguments)
    for term in itertools.chain.from_iterable(loss.split(JOINED_BY) for loss in options.losses):
        if term not in TERMS:
            parser.error(unknown("term of a loss", term, TERMS))
    torch.set_num_threads(1)
    wanted = itertools.product(options.tokens, options.losses, options.plans)
    try:
        folders = [teach(plan, loss, tokens, options) for tokens, loss, plan in wanted]
        encoders = [
            described(folder, values) for folder, values in zip(folders, judge_all(folders, options), strict=True)
        ]
        write_json(options.output / "general.json", {**provenance(), "encoders": encoders})
    except RecurraError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
