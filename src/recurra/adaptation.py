"""A pretrained encoder with its layers under a plan, as a folder that trainings start from."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recurra.core.errors import ConfigurationError
from recurra.core.files import write_json, write_text
from recurra.core.folders import atomic_folder
from recurra.core.progress import Reporter
from recurra.data.cleaning import clean_text
from recurra.data.encoding import encode_texts
from recurra.data.files import stream_texts
from recurra.data.tokenization import read_tokenizer
from recurra.models.accounting import count_parameters
from recurra.models.adaptation.convert import load_encoder
from recurra.models.adaptation.function import KeptFunction, ScoredPlan, best_plans
from recurra.models.adaptation.plan import SharingPlan
from recurra.models.adaptation.source import ADAPTATION_NAME, EncoderSource, find_encoder
from recurra.models.modeling import RecurraModel
from recurra.models.quiet import quieten_libraries

AUTO = "auto"
MOST_TEXTS = 250
# Longer texts are cut there while plans are compared: what a plan keeps hardly depends on it, and time does.
MOST_TOKENS = 128
# Plans that are shown, besides the one that was chosen.
SHOWN_PLANS = 12


@dataclass(frozen=True)
class AdaptationOptions:
    """How an encoder is adapted.

    Attributes:
        plan: Which layers are shared, as `recurra.models.adaptation.plan.SharingPlan` reads it, or ``auto``.
        stored: Layers with weights of their own, for ``auto``; none takes two thirds of the encoder's.
        applied: Layer applications at most, for ``auto``; none takes as many as the encoder has layers.
        texts: File with texts that plans are scored on.
        text_column: Column of the texts.
        changes: Keys of the model's configuration in place of the encoder's.
        overwrite: Whether a folder that lies there is replaced.
    """

    plan: str = AUTO
    stored: int | None = None
    applied: int | None = None
    texts: Path | None = None
    text_column: str = "text"
    changes: Mapping[str, Any] | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class Adaptation:
    """What was made.

    Attributes:
        folder: Where it lies.
        source: The encoder that it was made of.
        plan: Its layers.
        parameters: That are stored, without a head.
        scores: Plans that were compared, best first; of a plan that was given its own, if there were texts.
        texts: Number of texts that plans were scored on.
    """

    folder: Path
    source: EncoderSource
    plan: SharingPlan
    parameters: int
    scores: Sequence[ScoredPlan]
    texts: int

    def plain(self) -> dict[str, Any]:
        """Plain JSON values, as the folder keeps them."""
        return {
            "schema_version": 1,
            "encoder": self.source.name,
            "sha256": self.source.sha256,
            "layers": self.source.num_layers,
            "plan": str(self.plan),
            "stored_layers": self.plan.stored,
            "applied_layers": self.plan.applied,
            "parameters": self.parameters,
            "licence": self.source.licence,
            "trained_on": self.source.trained_on,
            "texts": self.texts,
            "scores": [
                {
                    "plan": str(each.plan),
                    "stored_layers": each.plan.stored,
                    "applied_layers": each.plan.applied,
                    "kept": round(each.kept, 6),
                }
                for each in self.scores
            ],
        }


def adapt(name: str, output: Path | str, options: AdaptationOptions, *, reporter: Reporter) -> Adaptation:
    """Writes a folder with an encoder whose layers are shared as a plan says; trainings start from it by its path.

    Args:
        name: As `recurra.models.adaptation.source.find_encoder` takes it.
        output: The folder to write.
        options: How.
        reporter: For progress.

    Raises:
        ConfigurationError: If the plan or a key is wrong, or ``auto`` has no texts.
        DataError: If the texts cannot be read.
        CheckpointError: If the encoder cannot be used.
        UnavailableError: If it cannot be had.
        StorageError: If the folder cannot be written.
    """
    quieten_libraries()
    source = find_encoder(name)
    if source.is_adapted:
        raise ConfigurationError(f"'{name}' was adapted already; start from the encoder that it came from")
    function, texts = _function(source, options, reporter)
    scores: list[ScoredPlan] = []
    if options.plan.strip() == AUTO:
        if function is None:
            raise ConfigurationError("--plan auto compares plans on your texts; give --texts FILE, or a plan")
        scores = _search(function, options, reporter)
        plan = scores[0].plan
    else:
        plan = source.plan(options.plan)
        scores = [] if function is None else [function.score(plan)]
    model = load_encoder(name, str(plan), **dict(options.changes or {}))
    made = Adaptation(Path(output), source, plan, count_parameters(model.config).total - _head(model), scores, texts)
    tokenizer = read_tokenizer(source.folder)
    with atomic_folder(output, replace=options.overwrite) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_json(folder / ADAPTATION_NAME, made.plain())
        write_text(folder / "README.md", _card(made))
    return made


def _head(model: RecurraModel) -> int:
    config = model.config
    return int((config.hidden_size + 1) * config.num_labels)


def _function(source: EncoderSource, options: AdaptationOptions, reporter: Reporter) -> tuple[KeptFunction | None, int]:
    if options.texts is None:
        return None, 0
    given = itertools.chain.from_iterable(stream_texts(options.texts, options.text_column))
    cleaned = list(dict.fromkeys(filter(None, map(clean_text, itertools.islice(given, 40 * MOST_TEXTS)))))
    # Evenly spread, for files are often sorted.
    chosen = [cleaned[index] for index in np.linspace(0, len(cleaned) - 1, min(MOST_TEXTS, len(cleaned))).astype(int)]
    reporter.say(f"comparing plans on {len(chosen)} texts of '{options.texts}'")
    ids, offsets = encode_texts(chosen, read_tokenizer(source.folder), MOST_TOKENS)
    encoder = load_encoder(source.name)
    rows = torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(np.diff(offsets))
    return KeptFunction(encoder, *rows), len(chosen)


def _search(function: KeptFunction, options: AdaptationOptions, reporter: Reporter) -> list[ScoredPlan]:
    layers = function.num_layers
    stored = max(1, round(2 * layers / 3)) if options.stored is None else options.stored
    applied = max(layers, stored) if options.applied is None else options.applied
    with reporter.task("plans", None) as task:
        return best_plans(function, stored, applied, advance=task.advance)


def _card(made: Adaptation) -> str:
    source = made.source
    kept = f"Before any training it keeps {made.scores[0].kept:.2f} of the encoder's function" if made.scores else ""
    measured = f"{kept}, the centred cosine of its output on {made.texts} texts.\n\n" if kept else ""
    return (
        f"# {source.name}, layers {made.plan}\n\n"
        f"An encoder of {made.plan.stored} stored layers that are applied {made.plan.applied} times, made by "
        f"`recurra adapt` of the {source.num_layers} layers of {source.name}. It has no head: train one with\n\n"
        "```sh\nrecurra train --model THIS_FOLDER --data labelled.csv --protocol finetune --output runs/mine\n```\n\n"
        f"{measured}"
        f"* Weights of the encoder: SHA-256 `{source.sha256}`, licence {source.licence}.\n"
        f"* It was trained on: {source.trained_on}.\n"
        f"* {made.parameters:,} parameters.\n"
    )
