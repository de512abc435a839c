"""Texts in, labels out, tokenisation included: `Classifier.predict` against ``pipeline("text-classification")``."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import corpus as corpora
from benchmarks import models
from benchmarks.lockstep import Job, in_turns
from benchmarks.measures import Measure, Setting
from recurra.deployment.classifier import Classifier
from recurra.deployment.engines.trained import TransformerEngine

SENTENCES = 10_000
TURNS = 10
PIPELINE_BATCH_SIZE = 32
LABELS = ["negative", "positive"]
OURS, OURS_FP32, BERT = "recurra bf16", "recurra fp32", "BERT, pipeline"


def build(job: Job) -> Callable[[int], None]:
    """Returns the prediction of one competitor; call ``i`` takes the ``i``-th of ``job.steps`` chunks of sentences."""
    corpus = corpora.Corpus(job.corpus_folder)
    chunks = corpora.chunks(corpus.texts, SENTENCES, TURNS)[: job.steps]
    tokenizer = corpus.tokenizer
    tokenizer.model_max_length = corpora.MAX_LENGTH
    if job.variant == BERT:
        from transformers import pipeline  # seconds, which the others do without

        model = models.bert(job.preset, dict(enumerate(LABELS))).eval()
        classify = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")

        def with_pipeline(index: int) -> None:
            predictions = classify(chunks[index], batch_size=PIPELINE_BATCH_SIZE, truncation=True)
            assert len(predictions) == len(chunks[index])

        return with_pipeline
    precision = "bf16" if job.variant == OURS else "fp32"
    engine = TransformerEngine(models.ours(job.preset), tokenizer, precision=precision, max_length=corpora.MAX_LENGTH)
    classifier = Classifier(engine, LABELS)

    def with_classifier(index: int) -> None:
        assert len(classifier.predict(chunks[index])) == len(chunks[index])

    return with_classifier


def measure(setting: Setting) -> list[Measure]:
    """Measures both presets."""
    results = []
    chunks = setting.sized(TURNS, 1)
    for name in setting.presets:
        # As the command does it; a pipeline's user would not.
        jobs = {
            variant: setting.job(__name__, variant, name, chunks, keep_memory=variant != BERT)
            for variant in (OURS, OURS_FP32, BERT)
        }
        with setting.competitors(jobs) as competitors:
            # FP32 has no target: a quarter of the turns will do.
            elapsed = in_turns(competitors, chunks, 1, seldom=(OURS_FP32,), warmup=setting.sized(1, 0))
        a_second = {variant: 1000 * SENTENCES / TURNS / ms for variant, ms in elapsed.items()}
        for ours, title, target in (
            (OURS, "predict against pipeline('text-classification', batch_size=32) with BERT", 4.0),
            (OURS_FP32, "the same, ours in FP32 as BERT is", None),
        ):
            results.append(
                Measure(
                    part="predict",
                    title=title,
                    preset=name,
                    ours_name=ours,
                    ours=a_second[ours],
                    other_name=BERT,
                    other=a_second[BERT],
                    unit="texts a second",
                    result=a_second[ours] / a_second[BERT],
                    result_unit="x",
                    target=target,
                )
            )
    return results
