"""Mean token states that a pretrained encoder gives whole texts before any training."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from recurra.core.configuration import content_hash
from recurra.core.progress import Reporter
from recurra.data.batching import pad_rows, sorted_batches
from recurra.data.corpora import IN_MEMORY
from recurra.data.encoding import cache_path, encode_texts, read_arrays, write_arrays
from recurra.data.tokenization import read_tokenizer
from recurra.models.adaptation.convert import load_encoder
from recurra.models.adaptation.source import EncoderSource
from recurra.models.controls import STATES_TOKENS
from recurra.models.heads import mean
from recurra.models.inference import PRECISIONS, default_device, has_bf16

_BATCH_SIZE = 32
# Most texts that a cache file holds, besides those of one call: 300 MB for MiniLM.
MOST_CACHED_TEXTS = 200_000
States = npt.NDArray[np.float32]


def cached_states(
    source: EncoderSource,
    texts: Sequence[str],
    reporter: Reporter,
    *,
    data: str,
    precision: str | None = None,
    cache_dir: Path | None = None,
) -> States:
    """Mean states of texts; computes only those that are not in the cache file of this encoder, precision and data.

    The file forgets the texts that came first, so that one for data that is often edited stays bounded.
    Without a precision, matrix products are in bf16 if this machine has instructions for it, else in FP32.
    """
    precision = precision or ("bf16" if has_bf16(default_device()) else "fp32")
    if data == IN_MEMORY:
        return mean_states(source, texts, reporter, precision=precision)
    name = str(Path(data).resolve()) if Path(data).is_file() else data
    path = cache_path(f"states-{content_hash([source.sha256, precision, STATES_TOKENS, name])}", cache_dir)
    digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8] for text in texts]
    hashes = np.frombuffer(b"".join(digests), dtype=np.int64)
    cached = read_arrays(path, ["texts", "states"])
    cached_hashes, states = np.zeros(0, dtype=np.int64), None
    if cached is not None:
        cached_hashes, states = cached["texts"], cached["states"]
    distinct_hashes, rows = np.unique(hashes, return_index=True)
    rows = rows[~np.isin(distinct_hashes, cached_hashes)]
    if len(rows):
        computed = mean_states(source, [texts[row] for row in rows], reporter, precision=precision)
        cached_hashes = np.concatenate([cached_hashes, hashes[rows]])
        states = computed if states is None else np.concatenate([states, computed])
        most = max(MOST_CACHED_TEXTS, len(distinct_hashes))
        # Those of this call come last, so that they stay.
        remaining = np.argsort(np.isin(cached_hashes, hashes), kind="stable")[-most:]
        write_arrays(path, {"texts": cached_hashes[remaining], "states": states[remaining]})
    assert states is not None, "there is no text"
    order = np.argsort(cached_hashes)
    ordered_states: States = states[order[np.searchsorted(cached_hashes, hashes, sorter=order)]]
    return ordered_states


@torch.inference_mode()
def mean_states(source: EncoderSource, texts: Sequence[str], reporter: Reporter, *, precision: str = "fp32") -> States:
    """The mean of an encoder's states over all tokens of each text, including special ones; summed in FP32.

    This is Sentence-BERT's mean pooling (Reimers and Gurevych 2019, section 3).
    """
    device = default_device()
    model = load_encoder(source.name).to(device=device, dtype=PRECISIONS[precision])
    ids, offsets = encode_texts(
        texts, read_tokenizer(source.folder), min(STATES_TOKENS, model.config.max_position_embeddings)
    )
    states = np.empty((len(texts), model.config.hidden_size), dtype=np.float32)
    with reporter.task("texts read by the encoder", len(texts)) as task:
        for rows in sorted_batches(np.diff(offsets), _BATCH_SIZE):
            tokens, inside = pad_rows(
                [ids[offsets[row] : offsets[row + 1]] for row in rows],
                model.config.pad_token_id or 0,
                longest=model.config.max_position_embeddings,
            )
            mask = torch.from_numpy(inside).to(device)
            output = model(torch.from_numpy(tokens).to(device), attention_mask=mask).last_hidden_state
            states[rows] = mean(output.float(), mask).cpu().numpy()
            task.advance(len(rows))
    return states
