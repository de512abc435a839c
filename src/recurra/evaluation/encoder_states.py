"""What a pretrained encoder makes of whole texts before any training: the mean of a text's token states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from recurra.core.progress import Reporter
from recurra.data.batching import sorted_batches
from recurra.data.encoding import encode_texts
from recurra.data.tokenization import read_tokenizer
from recurra.models.adaptation.convert import load_encoder
from recurra.models.adaptation.source import EncoderSource

# What stands behind is cut: a label seldom hangs on it, and twice the tokens are twice the time.
MAX_TOKENS = 256
_BATCH_SIZE = 32


@torch.inference_mode()
def mean_states(source: EncoderSource, texts: Sequence[str], reporter: Reporter) -> npt.NDArray[np.float32]:
    """The mean of the states that an encoder gives the tokens of a text, special ones among them, in FP32.

    Sentence-BERT's mean pooling (Reimers and Gurevych 2019, section 3). Some 60 sentences or 15 reviews a second and
    core with MiniLM.
    """
    model = load_encoder(source.name)
    ids, offsets = encode_texts(
        texts, read_tokenizer(source.folder), min(MAX_TOKENS, model.config.max_position_embeddings)
    )
    tokens, lengths = torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(np.diff(offsets))
    states = np.empty((len(texts), model.config.hidden_size), dtype=np.float32)
    with reporter.task("texts read by the encoder", len(texts)) as task:
        for rows in sorted_batches(lengths.numpy(), _BATCH_SIZE):
            packed = torch.cat([tokens[offsets[row] : offsets[row + 1]] for row in rows])
            found = model(packed[None], row_lengths=lengths[rows]).last_hidden_state[0]
            states[rows] = torch.segment_reduce(found.float(), "mean", lengths=lengths[rows]).numpy()
            task.advance(len(rows))
    return states
