"""Lengths of SST-2's rows in tokens, for a machine without the corpus.

Counted with BERT's uncased WordPiece, ``[CLS]`` and ``[SEP]`` included, after our cleaning, under the ``official``
protocol: position ``n`` of a table holds the number of rows of ``n`` tokens. Counted again, where the corpus is, by

    np.bincount(encode_split(dataset.splits["train"], tokenizer, 128).lengths)
"""

from __future__ import annotations

# 57,609 rows, phrases and sentences, 13.48 tokens on average.
TRAIN = (
    0, 0, 0, 1033, 4350, 5190, 4599, 4121, 3629, 3234, 2862, 2574, 2337, 2126, 1864, 1714, 1557, 1448, 1319, 1222, 1128,
    986, 969, 903, 798, 721, 690, 644, 606, 538, 469, 433, 375, 380, 353, 302, 262, 238, 202, 175, 170, 163, 135, 127,
    106, 75, 74, 75, 65, 48, 34, 38, 27, 28, 17, 18, 20, 13, 6, 3, 2, 2, 4, 3, 2, 2, 1,
)  # fmt: skip

# 1,821 sentences, 24.72 tokens on average.
TEST = (
    0, 0, 0, 0, 1, 9, 6, 15, 18, 47, 41, 51, 61, 36, 66, 51, 59, 55, 71, 50, 68, 67, 61, 55, 72, 60, 52, 66, 67, 60, 44,
    43, 51, 43, 36, 40, 29, 29, 36, 31, 22, 23, 19, 23, 14, 8, 7, 7, 8, 6, 6, 4, 4, 4, 4, 4, 1, 3, 2, 3, 0, 0, 2,
)  # fmt: skip

# Rows of the vocabulary that the training split reaches, of 30,522.
REACHED = 11_700
