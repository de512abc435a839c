"""A token table as two factors: narrow vectors of the pieces, and one map up to the width of the states."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Rows at once: a table in FP64 may have gigabytes.
_ROWS = 8192
# Of Zipf's law, so that the first thousand pieces count alike: special tokens, single characters, the commonest words.
_FLAT, _EXPONENT = 1000, 2.0


@dataclass(frozen=True)
class TableFactors:
    """``table[i] = weight @ pieces[i] + bias``, as near as the width allows.

    Attributes:
        pieces: ``(pieces, width)``.
        weight: ``(hidden, width)``; its columns are orthonormal, so that the vectors keep the table's scale.
        bias: ``(hidden,)``.
    """

    pieces: Tensor
    weight: Tensor
    bias: Tensor


def factorise_table(table: Tensor, width: int, frequencies: Tensor) -> TableFactors:
    """Returns the factors of a width that come nearest to a table, each row's squared error weighted.

    They are the mean row and the first right singular vectors of the centred rows, each scaled by the square root of
    its weight (Eckart and Young 1936; with weights of rows alone the scaled problem is the plain one). Singular vectors
    come from the Gram matrix, in FP64.

    Args:
        table: ``(pieces, hidden)``.
        width: Columns of the narrow table, from 1 to ``hidden``.
        frequencies: What each row's error counts, ``(pieces,)``, at least 0 and not all 0.
    """
    weights = (frequencies.double() / frequencies.double().sum())[:, None]
    parts = list(zip(table.split(_ROWS), weights.split(_ROWS), strict=True))
    mean = torch.stack([(part.double() * weight).sum(0) for part, weight in parts]).sum(0)
    gram = table.new_zeros(table.shape[1], table.shape[1], dtype=torch.float64)
    for part, weight in parts:
        scaled = (part.double() - mean) * weight.sqrt()
        gram += scaled.T @ scaled
    # In rising order of the eigenvalues.
    basis = torch.linalg.eigh(gram).eigenvectors.flip(1)[:, :width]
    pieces = torch.cat([(part.double() - mean) @ basis for part, _ in parts])
    return TableFactors(pieces.to(table), basis.to(table), mean.to(table))


def expected_frequencies(vocabulary: int, pieces: Tensor | None = None) -> Tensor:
    """Returns how often pieces are expected, ``(vocabulary,)``, in no unit: by their numbers, and by texts if given.

    Vocabularies are sorted by frequency, so numbers say something of texts that nobody has seen. Both count as much.

    Args:
        vocabulary: Number of pieces.
        pieces: Numbers of the pieces of some texts, one after the other; at least one, if given.
    """
    by_number = (_FLAT + torch.arange(vocabulary, dtype=torch.float64)) ** -_EXPONENT
    by_number /= by_number.sum()
    if pieces is None:
        return by_number
    return by_number + torch.bincount(pieces.long(), minlength=vocabulary) / len(pieces)
