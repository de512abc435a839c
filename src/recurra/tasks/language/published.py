"""What was published of language models: to stand beside ours, never among them.

Source: "CRT-Deep", tables 2 and 3, on WikiText-103. Its implementation pads convolutions on both sides and counts
padding in the loss, so every one of its figures leaks and is shown with that word. The references are honest figures of
models of about that size, by word on the test parts.
"""

from __future__ import annotations

from dataclasses import dataclass

PUBLISHED_MODEL = "crt-deep (leaks)"
PUBLISHED_TEXT = "WikiText-103 validation, epoch 10"


@dataclass(frozen=True)
class PublishedExit:
    """One row of table 2: what the head after a recurrence reaches; speed-up as loops that are not computed."""

    loop: int
    loss: float
    perplexity: float
    speed_up: float


@dataclass(frozen=True)
class ReferenceModel:
    """The perplexity by word of an honest model."""

    model: str
    text: str
    perplexity: float
    note: str


# The last one is the final head.
PUBLISHED_EXITS = (
    PublishedExit(2, 0.0892, 1.093, 4.0),
    PublishedExit(4, 0.0812, 1.084, 2.0),
    PublishedExit(6, 0.0778, 1.081, 1.33),
    PublishedExit(8, 0.0996, 1.105, 1.0),
)

# Table 3: validation loss at three loops by what a cycle is made of; a cycle without a convolution does not leak by it.
PUBLISHED_CYCLES = {"linear": 3.4080, "conv": 1.8815, "conv+linear": 1.6986, "depthwise": 2.1312}

PUBLISHED_REFERENCES = (
    ReferenceModel("GPT-2 117M", "WikiText-2", 29.4, "not trained on it"),
    ReferenceModel("GPT-2 117M", "WikiText-103", 37.5, "not trained on it"),
    ReferenceModel("Transformer-XL, about 150M", "WikiText-103", 23.6, "trained on it"),
    ReferenceModel("DEQ-Transformer 110M, weight-tied", "WikiText-103", 23.2, "trained on it"),
)
