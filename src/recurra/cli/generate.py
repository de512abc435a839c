"""``recurra generate``: continues prompts; the text goes to standard output, its cost to standard error."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recurra.cli import options
from recurra.cli.output import print_json, standard_output
from recurra.core.errors import DataError

if TYPE_CHECKING:
    from recurra.deployment.generation import GenerationFigures, Generator


def generate(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN|PATH", help="Folder of a language model: a run, or one of transformers."),
    ],
    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="Texts to continue.")] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--input",
            "-i",
            help="A .txt file (one prompt a line) or a table (.csv, .jsonl, .xlsx ...); - reads standard input.",
        ),
    ] = None,
    text_column: options.InputTextColumn = "text",
    encoding: options.Encoding = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Most tokens to add.")] = 64,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", help="Draw tokens; below 1 is less random. Default: the most probable token."),
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Draw from the most probable tokens of this total probability.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=1, help="Draw from this many most probable tokens.")
    ] = None,
    num_beams: Annotated[int, typer.Option("--num-beams", min=1, help="Beams of the search.")] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the draws.")] = 0,
    exit_rule: options.ExitRuleName = None,
    threshold: options.ExitThreshold = None,
    exit_after: options.ExitAfter = None,
    draft: Annotated[
        int | None,
        typer.Option("--draft", help="Draft tokens with this exit, then check them together: the same text, faster."),
    ] = None,
    precision: options.Precision = "fp32",
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Prompts computed together.")] = 8,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Continue one or several prompts.

    A single prompt streams to the terminal. With several, each text ends with an empty line.

    Example: recurra generate runs/wikitext "The river" --temperature 0.8 --exit-rule confidence
    """
    from recurra.core.progress import Reporter
    from recurra.deployment.generation import GenerationSettings, Generator, LanguageModel
    from recurra.deployment.prediction.files import source_chunks
    from recurra.models.exits.rules import make_rule
    from recurra.models.quiet import quieten_libraries

    run = options.one_run(run, quiet=quiet)
    rule = make_rule(exit_rule, threshold=threshold, after=exit_after)
    settings = options.chosen(GenerationSettings, locals())
    texts = [
        text
        for chunk in source_chunks(prompts or [], source, text_column, encoding=encoding)
        for text in chunk.texts
        if source is None or text.strip()
    ]
    if not texts:
        raise DataError(f"'{source}' has no prompt; write at least one line of words")
    quieten_libraries()
    generator = Generator(LanguageModel.load(run, precision=precision), settings)
    results = _print(generator, texts, batch_size, as_json=as_json)
    if as_json:
        plain_rule = None if rule is None else rule.plain()
        print_json({"model": str(run), "results": results, "exit_rule": plain_rule, **generator.figures.plain()})
    for line in _figures(generator.figures):
        Reporter(quiet=quiet).say(line)


def _print(generator: Generator, texts: list[str], batch_size: int, *, as_json: bool) -> list[dict[str, Any]]:
    streams = not as_json and len(texts) == 1 and generator.settings.num_beams == 1
    results = []
    with standard_output():
        for result in generator.run(texts, batch_size=batch_size, write=_write if streams else None):
            results.append(vars(result))
            if not as_json and not streams:
                _write(f"{result.prompt}{result.text}\n" + ("\n" if len(texts) > 1 else ""))
    return results


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _figures(figures: GenerationFigures) -> list[str]:
    lines = [f"{figures.tokens:,} tokens, {figures.tokens_per_second:,.1f} tokens a second"]
    if figures.cache_bytes_per_token is not None:
        lines[0] += f"; cache: {figures.cache_bytes_per_token / 1024:,.2f} KiB a token and row"
    if figures.exits:
        total = sum(figures.exits.values())
        shares = [f"{number}: {100 * count / total:.0f} %" for number, count in sorted(figures.exits.items())]
        lines.append(f"tokens after the first, by the recurrences they took: {', '.join(shares)}")
    if figures.drafted:
        lines.append(f"drafted tokens that were right: {100 * figures.accepted / figures.drafted:.0f} %")
    return lines
