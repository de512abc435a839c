"""The conclusion of a table of language models: what the seeds support, and what leaks."""

from __future__ import annotations

from collections.abc import Sequence

from recurra.core.formatting import words
from recurra.core.language_record import FINAL_HEAD
from recurra.tasks.language.summary import LanguageModelSummary
from recurra.tasks.summary import PairTest


def conclude_language(models: Sequence[LanguageModelSummary], differences: Sequence[PairTest], split: str) -> str:
    """Some sentences on a table.

    Args:
        models: What may be quoted first, best first; then what leaks.
        differences: Between those that may be quoted.
        split: The split that is judged.
    """
    honest = [model for model in models if not model.leaks]
    sentences = []
    if honest:
        sentences.append(_best(honest, split))
        sentences += _held_against(honest[0].label, differences)
        if len(honest) > 1 and any(len(model.seeds) == 1 for model in honest):
            sentences.append("With one seed, another training could turn out differently.")
    sentences += [_leak(model, split) for model in models if model.leaks]
    return " ".join(sentences)


def _best(honest: Sequence[LanguageModelSummary], split: str) -> str:
    score = honest[0].scores[split][FINAL_HEAD]
    by_word = "" if score.word_perplexity is None else f", {score.word_perplexity:,.1f} a word"
    token = "beyond numbers" if score.token_perplexity is None else f"{score.token_perplexity:,.1f}"
    lead = f"Best on {split}" if len(honest) > 1 else f"On {split}"
    return f"{lead}: {honest[0].label}, perplexity {token} a token{by_word}."


def _held_against(best: str, pairs: Sequence[PairTest]) -> list[str]:
    behind, level, unknown = [], [], []
    for pair in (pair for pair in pairs if pair.first == best):
        if pair.low is None or pair.high is None:
            unknown.append(f"{pair.second} ({pair.gap:+.3f} nats a token)")
        elif pair.supported:
            behind.append(f"{pair.second} ({pair.gap:+.3f} nats a token, 95 % {pair.low:+.3f} to {pair.high:+.3f})")
        else:
            level.append(f"{pair.second} ({pair.gap:+.3f}, 95 % {pair.low:+.3f} to {pair.high:+.3f})")
    sentences = []
    if behind:
        sentences.append(f"Behind it by more than the seeds explain: {words(behind)}.")
    if level:
        tested = sum(pair.p is not None for pair in pairs)
        corrected = f", corrected for {tested} pairs" if tested > 1 else ""
        sentences.append(f"Not distinguishable from {best} by their seeds{corrected}: {words(level)}.")
    if unknown:
        sentences.append(f"Behind it with one seed: {words(unknown)}.")
    # The best by the mean of all its seeds may have seeds that another lacks.
    ahead = [f"{pair.first} ({-pair.gap:+.3f} nats a token)" for pair in pairs if pair.second == best]
    if ahead:
        sentences.append(f"Ahead of it on the seeds that both have: {words(ahead)}.")
    return sentences


def _leak(model: LanguageModelSummary, split: str) -> str:
    score = model.scores[split][FINAL_HEAD]
    value = score.word_perplexity if score.word_perplexity is not None else score.token_perplexity
    figure = "" if value is None else f" shows {value:,.2f} a word because it"
    return f"{model.label}{figure} leaks: its predictions read up to {model.reach_tokens} tokens ahead."
