"""Writes a pretrained encoder with the layers of a plan, as a folder that trainings start from."""

from __future__ import annotations

import hashlib
import itertools
import math
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recurra.core.configuration import content_hash
from recurra.core.errors import ConfigurationError
from recurra.core.files import atomic_folder, read_json, refuse_present, write_json, write_text
from recurra.core.progress import Reporter
from recurra.data.cleaning import clean_text
from recurra.data.encoding import cache_path, encode_texts, read_arrays, write_arrays
from recurra.data.passages import Passages, PassageSource, read_passages, short_name
from recurra.data.tables import stream_texts
from recurra.data.tokenization import read_tokenizer
from recurra.models.adaptation.convert import KeptFunction, candidate_plans, load_encoder, save_int8
from recurra.models.adaptation.plan import SharingPlan, align
from recurra.models.adaptation.source import ADAPTATION_NAME, EncoderSource, find_encoder
from recurra.models.configuration import RecurraConfig
from recurra.models.inference import default_device
from recurra.models.modeling import RecurraModel
from recurra.models.presets import count_parameters, forward_flops
from recurra.models.quiet import quieten_libraries
from recurra.models.rows import PackedRows
from recurra.training.general_distillation import LOSS, TASK_NAME, GeneralDistillation

# Keys that apply where layers are shared, and not to a stack.
RELAXATIONS = ("recurrence_norms", "low_rank", "low_rank_where", "relaxation_start")
# Keys of models that loop and have no layers behind the loop.
_NOT_FOR_STACKS = ("exits", "tokens_without_recurrence")
_OF_THE_PLAN = ("num_prelude_layers", "num_core_layers", "num_recurrences", "num_coda_layers")
_ROUNDS = 15


@dataclass(frozen=True)
class PlanCosts:
    """Costs of plans of one encoder; ``all_changes`` replace keys of the encoder's configuration."""

    source: EncoderSource
    all_changes: Mapping[str, Any]

    def changes(self, plan: SharingPlan) -> dict[str, Any]:
        """Keys of the model of a plan; a stack shares nothing, and has no relaxations."""
        stack = plan.recurrences == 1
        return {key: value for key, value in self.all_changes.items() if not (stack and key in RELAXATIONS)}

    def config(self, plan: SharingPlan) -> RecurraConfig:
        """Configuration of the model of a plan."""
        return RecurraConfig(**self.source.shape(str(plan), self.changes(plan)))

    def parameters(self, plan: SharingPlan) -> int:
        """Parameters that are stored, without a head."""
        counts = count_parameters(self.config(plan))
        return counts.total - counts.head

    def timer(self, tokens: int) -> Callable[[SharingPlan], float]:
        """Returns an estimate of the milliseconds that a text of some tokens takes by itself.

        The encoder and its embedding are timed here and now; a plan's layers take the encoder's time in proportion to
        their operations.
        """
        encoder = load_encoder(self.source.name)
        ids = torch.ones(1, tokens, dtype=torch.long)
        lengths = torch.tensor([tokens])
        layout = PackedRows.of(encoder.rotary, lengths, causal=False)
        encoder_ms = _milliseconds(lambda: encoder(ids, row_lengths=lengths))
        embedding_ms = min(encoder_ms, _milliseconds(lambda: encoder.embeddings(ids, None, layout)))
        ms_per_flop = (encoder_ms - embedding_ms) / forward_flops(encoder.config, tokens)
        return lambda plan: embedding_ms + ms_per_flop * forward_flops(self.config(plan), tokens)


@torch.inference_mode()
def _milliseconds(call: Callable[[], object]) -> float:
    """Median time of some calls, after one that does not count."""
    call()
    times = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


MOST_TEXTS = 250
# Longer texts are cut here while plans are compared: it saves time and hardly changes scores.
MOST_TOKENS = 128
# Version of the computation; it changes when scores change.
_SCORE_VERSION = 1


class PlanScores:
    """Scores plans of one encoder on texts, and keeps the scores in a cache.

    Args:
        relaxed: Configuration of a plan with shared layers: what recurrences have of their own, and how wide the token
            table is.

    Attributes:
        rows_hash: Hash of the texts that plans are scored on.
        mean_tokens: Mean tokens of a text, rounded, cut to what the encoder reads.
        pieces: Numbers of the pieces that a narrow token table is fitted to, ``(tokens,)``, if possible from texts that
            no plan is scored on; None without such a table.
    """

    def __init__(
        self, source: EncoderSource, rows: Iterable[list[str]], relaxed: RecurraConfig, cache_dir: Path | None
    ) -> None:
        self._source, self._relaxed = source, relaxed
        all_texts = itertools.chain.from_iterable(rows)
        cleaned = list(dict.fromkeys(filter(None, map(clean_text, itertools.islice(all_texts, 40 * MOST_TEXTS)))))
        if len(cleaned) < 2:
            raise ConfigurationError(f"plans are scored on different texts, at least 2, but there are {len(cleaned)}")
        # Evenly spread, because files are often sorted.
        indices = np.linspace(0, len(cleaned) - 1, min(MOST_TEXTS, len(cleaned))).astype(int)
        tokenizer, scored = read_tokenizer(source.folder), [cleaned[index] for index in indices]
        ids, offsets = encode_texts(scored, tokenizer, min(MOST_TOKENS, relaxed.max_position_embeddings))
        self.texts = len(offsets) - 1
        token_counts = np.diff(encode_texts(scored, tokenizer, relaxed.max_position_embeddings)[1])
        self.mean_tokens = max(1, round(float(token_counts.mean())))
        self._rows = torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(np.diff(offsets))
        self.pieces, fitted = None, {}
        if relaxed.token_embedding_size != relaxed.hidden_size:
            others = [cleaned[index] for index in np.setdiff1d(np.arange(len(cleaned)), indices)]
            self.pieces = torch.from_numpy(encode_texts(others or scored, tokenizer, MOST_TOKENS)[0])
            digest = hashlib.sha256(self.pieces.numpy().tobytes()).hexdigest()
            fitted = {"table": [relaxed.embedding_size, digest]}
        self.rows_hash = hashlib.sha256(ids.tobytes() + offsets.tobytes()).hexdigest()
        # Scores were once stored for each relaxation.
        content = {"version": _SCORE_VERSION, "encoder": source.sha256, "rows": self.rows_hash, "relaxations": {}}
        self._path = cache_path(f"plans-{content_hash({**content, **fitted})}", cache_dir)
        stored = read_arrays(self._path, ("plans", "kept"))
        self._known: dict[str, float] = {}
        if stored is not None:
            names = stored["plans"].tobytes().decode().split("\n")
            self._known.update(zip(names, stored["kept"].tolist(), strict=True))
        self._stored = len(self._known)

    @cached_property
    def _function(self) -> KeptFunction:
        name, table = self._source.name, None
        if self.pieces is not None:
            width = self._relaxed.embedding_size
            table = load_encoder(name, pieces=self.pieces, embedding_size=width).embeddings
        return KeptFunction(load_encoder(name), *self._rows, table)

    def score(self, plan: SharingPlan) -> float:
        """Share of the encoder's function that a plan keeps."""
        name = str(plan)
        if name not in self._known:
            self._known[name] = self._function.score(plan)
        return self._known[name]

    def keep(self) -> None:
        """Writes new scores to the cache, if there are any."""
        if len(self._known) > self._stored:
            names = np.frombuffer("\n".join(self._known).encode(), dtype=np.uint8)
            scores = np.array(list(self._known.values()), dtype=np.float64)
            write_arrays(self._path, {"plans": names, "kept": scores})
            self._stored = len(self._known)


AUTO = "auto"
# Pieces of each source that a narrow token table is fitted to.
_MOST_PIECES = 500_000
# Plans that are shown, besides the one that was chosen.
SHOWN_PLANS = 12


@dataclass(frozen=True)
class AdaptationOptions:
    """How an encoder is adapted.

    Attributes:
        plan: Which layers are shared, as `recurra.models.adaptation.plan.SharingPlan` reads it, or ``auto``.
        stored: Layers with weights of their own, for ``auto``; None takes two thirds of the encoder's.
        applied: Layer applications at most, for ``auto``; None takes as many as the encoder has layers.
        changes: Keys of the model's configuration in place of the encoder's. Keys that give recurrences
            parameters of their own apply to every plan with shared layers.
        teach: Files and named corpora whose texts the encoder's states are taught on; without any, the
            layers stay untrained.
        apart: Files and named corpora with texts that models are reported on; they are not taught on.
        minutes: Minutes of teaching, over all restarts; or give ``tokens``.
        int8: Whether matrices are stored as whole numbers, in a quarter of the size.
        loss: Terms of the loss of teaching, some of `recurra.training.general_distillation.TERMS`.
    """

    plan: str = AUTO
    stored: int | None = None
    applied: int | None = None
    texts: Path | None = None
    text_column: str = "text"
    encoding: str | None = None
    max_parameters: int | None = None
    max_ms: float | None = None
    changes: Mapping[str, Any] | None = None
    cache_dir: Path | None = None
    overwrite: bool = False
    teach: Sequence[str] = ()
    apart: Sequence[str] = ()
    minutes: float | None = None
    tokens: int | None = None
    data_root: Path | None = None
    int8: bool = False
    loss: Sequence[str] = LOSS


@dataclass(frozen=True)
class PlanPoint:
    """A plan, its score, and the costs of its model."""

    plan: SharingPlan
    score: float
    parameters: int
    ms: float | None = None


@dataclass(frozen=True)
class Adaptation:
    """Result of `adapt`.

    Attributes:
        scores: Compared plans, best first; for a given plan its own score, if there were texts.
        taught: Texts that taught it, and measurements on held-out texts; empty without teaching.
    """

    folder: Path
    source: EncoderSource
    plan: SharingPlan
    parameters: int
    changes: Mapping[str, Any]
    scores: Sequence[PlanPoint]
    texts: int
    taught: Mapping[str, Any]

    @property
    def trained_on(self) -> str:
        """What its weights were trained on, in words."""
        names = ", ".join(text["name"] for text in self.taught.get("texts", ()))
        return self.source.trained_on + (f"; then its states were taught on {names}" if names else "")

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
            "trained_on": self.trained_on,
            "changes": dict(self.changes),
            **({"taught": dict(self.taught)} if self.taught else {}),
            "texts": self.texts,
            "scores": [
                {
                    "plan": str(point.plan),
                    "stored_layers": point.plan.stored,
                    "applied_layers": point.plan.applied,
                    "parameters": point.parameters,
                    **({} if point.ms is None else {"estimated_ms": round(point.ms, 3)}),
                    "kept": round(point.score, 6),
                }
                for point in self.scores
            ],
        }


def adapt(name: str, output: Path | str, options: AdaptationOptions, *, reporter: Reporter) -> Adaptation:
    """Writes a folder with an encoder whose layers are shared as a plan says; trainings start from it by its path."""
    quieten_libraries()
    source = find_encoder(name)
    if source.is_adapted:
        raise ConfigurationError(f"'{name}' was adapted already; start from the encoder that it came from")
    _check_budgets(options)
    refuse_present(Path(output), replace=options.overwrite, mark=ADAPTATION_NAME)
    auto = options.plan.strip() == AUTO
    changes = dict(options.changes or {})
    _check_keys(changes, auto=auto)
    costs = PlanCosts(source, changes)
    # This refuses a wrong key, or a rank above the width, before anything is computed.
    shared = RecurraConfig(**source.shape("(0)x2" if auto else options.plan, changes))
    scores = None
    if options.texts is not None:
        rows = stream_texts(options.texts, options.text_column, encoding=options.encoding)
        scores = PlanScores(source, rows, shared, options.cache_dir)
        reporter.say(f"comparing plans on {scores.texts} texts of '{options.texts}'")
    # The folder of work has no name while it is ".".
    target = Path(output).absolute()
    work = target.with_name(f"{target.name}.teaching")
    plan, points, changes = _choose_plan(scores, costs, options, work=work, reporter=reporter)
    tokenizer = read_tokenizer(source.folder)
    pieces = None if scores is None else scores.pieces
    lessons: list[PassageSource] = []
    if options.teach:
        lessons = read_passages(
            options.teach,
            options.apart,
            tokenizer,
            text_column=options.text_column,
            encoding=options.encoding,
            data_root=options.data_root,
            cache_dir=options.cache_dir,
            reporter=reporter,
        )
        pieces = torch.from_numpy(np.concatenate([lesson.input_ids[:_MOST_PIECES] for lesson in lessons]))
    with torch.random.fork_rng(devices=[]):
        # Random low-rank updates are the same every time.
        torch.manual_seed(0)
        model = load_encoder(name, str(plan), pieces, **changes)
    taught: dict[str, Any] = {}
    if lessons:
        # `_begun_search` reads these keys.
        searched: dict[str, Any] = {}
        if auto and scores is not None:
            compared = [[str(point.plan), point.score, point.parameters, point.ms] for point in points]
            searched = {"compared_on": scores.rows_hash, "scores": compared}
        taught = _teach(model, source, plan, lessons, options, searched=searched, work=work, reporter=reporter)
    texts = 0 if scores is None else scores.texts
    result = Adaptation(Path(output), source, plan, costs.parameters(plan), changes, points, texts, taught)
    with atomic_folder(output, replace=options.overwrite, mark=ADAPTATION_NAME) as folder:
        if options.int8:
            save_int8(model, folder)
        else:
            model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        weights = EncoderSource(str(output), folder, {}).sha256
        write_json(folder / ADAPTATION_NAME, {**result.plain(), "weights_sha256": weights})
        write_text(folder / "README.md", _card(result))
    if lessons:
        shutil.rmtree(work, ignore_errors=True)
    return result


def _choose_plan(
    scores: PlanScores | None, costs: PlanCosts, options: AdaptationOptions, *, work: Path, reporter: Reporter
) -> tuple[SharingPlan, list[PlanPoint], dict[str, Any]]:
    """The plan, the compared plans (best first), and keys that its model changes in the encoder's configuration."""
    if options.plan.strip() != AUTO:
        plan = costs.source.plan(options.plan)
        points = [] if scores is None else [PlanPoint(plan, scores.score(plan), costs.parameters(plan))]
        return plan, points, dict(costs.all_changes)
    earlier_points = _begun_search(work, costs.source, scores, options) if options.teach else []
    points = earlier_points or _search(scores, costs, options, reporter)
    plan = points[0].plan
    changes = costs.changes(plan)
    if earlier_points:
        # Times are never measured twice alike, so another search might choose another plan.
        reporter.say(f"the plan stays {plan}, because teaching began with it")
    elif changes != costs.all_changes:
        reporter.say(f"the best plan, {plan}, is a stack: it shares nothing, so there is nothing to relax")
    return plan, points, changes


def _begun_search(
    work: Path, source: EncoderSource, scores: PlanScores | None, options: AdaptationOptions
) -> list[PlanPoint]:
    """Plans that an interrupted teaching in a folder compared, if on these texts and within these budgets."""
    try:
        task = read_json(work / TASK_NAME)
        same = task["encoder"] == source.sha256 and task["budgets"] == _budgets(options)
        if scores is not None and same and task["compared_on"] == scores.rows_hash:
            return [PlanPoint(source.plan(plan), *costs) for plan, *costs in task["scores"]]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return []


def _budgets(options: AdaptationOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("stored", "applied", "max_parameters", "max_ms")}


def _teach(
    model: RecurraModel,
    source: EncoderSource,
    plan: SharingPlan,
    lessons: Sequence[PassageSource],
    options: AdaptationOptions,
    *,
    searched: Mapping[str, Any],
    work: Path,
    reporter: Reporter,
) -> dict[str, Any]:
    """Teaches a model the encoder's states, or resumes that; returns a report in plain JSON values."""
    device = default_device()
    budget = float(options.tokens or 0) or 60 * (options.minutes or 0)
    teaching = GeneralDistillation(
        model.to(device),
        load_encoder(source.name).to(device),
        align(plan, source.num_layers),
        Passages(lessons, seed=0),
        budget,
        in_tokens=options.tokens is not None,
        loss=options.loss,
    )
    texts = [lesson.plain() for lesson in lessons]
    task = {
        "encoder": source.sha256,
        "plan": str(plan),
        "budgets": _budgets(options),
        "keys": dict(options.changes or {}),
        "minutes": options.minutes,
        "tokens": options.tokens,
        "loss": options.loss,
        # By what is learned: a file's passages depend on what they are kept apart from, its column and its encoding.
        "texts": [
            f"{lesson.name}, {len(lesson):,} passages, {hashlib.sha256(lesson.input_ids.tobytes()).hexdigest()[:16]}"
            for lesson in lessons
        ],
        **searched,
    }
    teaching.run(work, task, read_tokenizer(source.folder), {"taught": {"texts": texts}}, reporter)
    model.cpu()
    return {
        "texts": texts,
        "apart": [short_name(name) for name in options.apart],
        "loss": list(options.loss),
        "tokens": teaching.tokens,
        "minutes": round(teaching.seconds / 60, 2),
        "history": teaching.history,
    }


def _check_budgets(options: AdaptationOptions) -> None:
    if options.teach and (options.minutes is None) == (options.tokens is None):
        raise ConfigurationError("--teach needs a budget: --minutes N of training over all restarts, or --tokens N")
    for name, value in {"--minutes": options.minutes, "--tokens": options.tokens}.items():
        if value is not None and not (options.teach and 0 < value < math.inf):
            no_texts = "it limits teaching: name texts to teach with, --teach FILE"
            reason = "a budget is a finite number above 0" if options.teach else no_texts
            raise ConfigurationError(f"{name} is {value:g}; {reason}")
    if options.apart and not options.teach:
        raise ConfigurationError("--apart excludes texts from teaching; name the texts to teach with, --teach FILE")
    for name, value in _budgets(options).items():
        if value is not None and options.plan.strip() != AUTO:
            option = f"--{name.replace('_', '-')}"
            raise ConfigurationError(
                f"{option} is {value:,}, but the plan is '{options.plan}'; use it with --plan auto"
            )


def _check_keys(changes: Mapping[str, Any], *, auto: bool) -> None:
    for key in _OF_THE_PLAN:
        if key in changes:
            raise ConfigurationError(
                f"'{key}' is {changes[key]}, and the plan says which layers there are and how often they are applied; "
                "leave it out, and give a plan, as '0 (3 4)x2 5'"
            )
    for key in _NOT_FOR_STACKS if auto else ():
        if changes.get(key):
            raise ConfigurationError(
                f"'{key}' is {changes[key]}, and --plan auto compares plans that cannot have it; leave it out, or give "
                "a plan that ends with a repeated group, as '0 (3 4)x2'"
            )


def _search(
    scores: PlanScores | None, costs: PlanCosts, options: AdaptationOptions, reporter: Reporter
) -> list[PlanPoint]:
    """Scores the plans that keep the budgets, best first."""
    if scores is None:
        raise ConfigurationError("--plan auto compares plans on your texts; give --texts FILE, or a plan")
    layers = costs.source.num_layers
    estimate_ms = costs.timer(scores.mean_tokens) if options.max_ms is not None else None

    def fits(plan: SharingPlan) -> bool:
        small = options.max_parameters is None or costs.parameters(plan) <= options.max_parameters
        return small and (estimate_ms is None or options.max_ms is None or estimate_ms(plan) <= options.max_ms)

    scored: dict[SharingPlan, float] = {}
    try:
        plans = [
            plan
            for stored in _stored(layers, options, fits)
            for plan in candidate_plans(layers, scores.score, stored, options.applied or max(layers, stored), fits=fits)
        ]
        with reporter.task("plans", len(plans)) as task:
            for plan in plans:
                scored[plan] = scores.score(plan)
                task.advance()
    finally:
        scores.keep()
    if not scored:
        smallest = SharingPlan((), (0,), (), 1)
        timing = "" if estimate_ms is None else f" and takes about {estimate_ms(smallest):.1f} ms"
        raise ConfigurationError(
            f"no plan fits the limits; one layer applied once has {costs.parameters(smallest):,} parameters{timing}: "
            "raise --max-parameters or --max-ms, or store and apply fewer layers"
        )
    return [
        PlanPoint(plan, scored[plan], costs.parameters(plan), None if estimate_ms is None else estimate_ms(plan))
        for plan in sorted(scored, key=lambda plan: (-scored[plan], plan.applied, str(plan)))
    ]


def _stored(layers: int, options: AdaptationOptions, fits: Callable[[SharingPlan], bool]) -> list[int]:
    """Numbers of stored layers to try: as given, or two thirds; with a parameter budget the largest two that fit."""
    if options.stored is not None:
        return [options.stored]
    most = min(layers, options.applied or layers)
    allowed = [number for number in range(1, most + 1) if fits(SharingPlan((), tuple(range(number)), (), 1))]
    if options.max_parameters is not None:
        return allowed[-2:]
    return [min(max(1, round(2 * layers / 3)), allowed[-1])] if allowed else []


def _card(result: Adaptation) -> str:
    source = result.source
    measured = ""
    if result.scores:
        measured = (
            f"Before any training it keeps {result.scores[0].score:.2f} of the encoder's function, the centred "
            f"cosine of its output on {result.texts} texts.\n\n"
        )
    if result.taught:
        first, last = result.taught["history"][0], result.taught["history"][-1]
        measured += (
            f"It learned the encoder's states on {last['tokens']:,} tokens of texts without labels. On held-out "
            f"passages it keeps {last['kept']:.3f} of the encoder's function; before, it kept {first['kept']:.3f}.\n\n"
        )
    return (
        f"# {source.name}, layers {result.plan}\n\n"
        f"An encoder of {result.plan.stored} stored layers that are applied {result.plan.applied} times, made by "
        f"`recurra adapt` of the {source.num_layers} layers of {source.name}. It has no head: train one with\n\n"
        "```sh\nrecurra train --model THIS_FOLDER --data labelled.csv --protocol finetune --output runs/mine\n```\n\n"
        f"{measured}"
        f"* Weights of the encoder: SHA-256 `{source.sha256}`, licence {source.licence}.\n"
        f"* It was trained on: {result.trained_on}.\n* {result.parameters:,} parameters.\n"
        + "".join(f"* `{key}`: {value}\n" for key, value in result.changes.items())
    )
