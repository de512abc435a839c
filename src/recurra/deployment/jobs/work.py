"""One part of a job: read, predicted, written whole, and then noted as done."""

from __future__ import annotations

import platform
import time
from pathlib import Path

from recurra.core.errors import DataError, RecurraError
from recurra.data.files import stream_rows
from recurra.deployment.classifier import Classifier
from recurra.deployment.jobs.partitions import Partition, PartManifest, finished, hash_of
from recurra.deployment.prediction.files import open_writer
from recurra.deployment.prediction.stream import CHUNK_ROWS, write_stream


def carry_out(partition: Partition, job: str, text_column: str, classifier: Classifier) -> tuple[PartManifest, bool]:
    """Predicts one file, unless that is done already.

    The predictions take their place when they are whole, the manifest after them: killed at any moment, a part is
    done, or it is made again.

    Args:
        partition: The part.
        job: Hash of what is asked for.
        text_column: Column with the text.
        classifier: What predicts.

    Returns:
        The manifest, and whether there was work to do.

    Raises:
        DataError: If the file cannot be read, or was changed meanwhile.
        StorageError: If the predictions cannot be written.
    """
    done = finished(partition, job)
    if done is not None:
        return done, False
    started = time.monotonic()
    partition.manifest.unlink(missing_ok=True)
    before, digest = _stamp(partition.source), hash_of(partition.source)
    with open_writer(partition.output, classifier.decision) as writer:
        chunks = stream_rows(partition.source, text_column, (), CHUNK_ROWS)
        counts = write_stream(classifier, chunks, writer)
        if _stamp(partition.source) != before:
            raise DataError(f"'{partition.source}' was changed while it was read; start again when nobody writes to it")
    made = PartManifest(
        name=partition.name,
        source_bytes=before[0],
        source_sha256=digest,
        job=job,
        output=partition.output.name,
        output_bytes=partition.output.stat().st_size,
        rows=counts.rows,
        empty=counts.empty,
        labels=dict(sorted(counts.labels.items())),
        node=platform.node(),
        wall_s=round(time.monotonic() - started, 3),
    )
    return made.write(partition.manifest), True


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror}; every worker must see it under this path") from error
    return status.st_size, status.st_mtime_ns


def explain(partition: Partition, error: RecurraError) -> str:
    """What became of a part that failed, in one line."""
    return f"{partition.name}: {' '.join(str(error).split())}"
