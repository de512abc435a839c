"""The factors of a token table against numpy's SVD, and how often pieces are expected."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recurra.models.adaptation import convert as table_module
from recurra.models.adaptation.convert import TableFactors, expected_frequencies, factorise_table

HIDDEN, PIECES = 7, 23


def drawn(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A table whose mean is far from 0, and frequencies of which some are 0."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(PIECES, HIDDEN, generator=generator) * torch.arange(1, HIDDEN + 1) + 3
    frequencies = torch.rand(PIECES, generator=generator).square()
    frequencies[:3] = 0
    return table, frequencies


def product(factors: TableFactors) -> torch.Tensor:
    return factors.pieces @ factors.weight.T + factors.bias


@given(seed=st.integers(0, 1000), width=st.integers(1, HIDDEN), rows=st.integers(1, 30))
def test_it_is_the_truncated_svd_of_the_weighted_rows(seed: int, width: int, rows: int) -> None:
    table, frequencies = drawn(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "_ROWS", rows)
        factors = factorise_table(table, width, frequencies)
    values, weights = table.double().numpy(), frequencies.double().numpy()
    mean = np.average(values, axis=0, weights=weights)
    left, scales, right = np.linalg.svd(np.sqrt(weights)[:, None] * (values - mean), full_matrices=False)
    kept = weights > 0
    best = (left[:, :width] * scales[:width] @ right[:width])[kept] / np.sqrt(weights[kept])[:, None] + mean
    np.testing.assert_allclose(product(factors).numpy()[kept], best, rtol=1e-4, atol=1e-4)
    # Eckart and Young: what is lost are the singular values that were left out.
    lost = (weights[:, None] * (product(factors).numpy() - values) ** 2).sum()
    np.testing.assert_allclose(lost, (scales[width:] ** 2).sum(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(factors.weight.T @ factors.weight, torch.eye(width), rtol=1e-5, atol=1e-5)


def test_pieces_are_expected_by_their_numbers_and_by_texts() -> None:
    alone, seen = (
        expected_frequencies(5000),
        expected_frequencies(5000, torch.tensor([4000, 7, 4000, 4], dtype=torch.int32)),
    )
    assert (alone.diff() < 0).all() and alone.sum() == pytest.approx(1)
    found = seen - alone
    assert found[4000] == pytest.approx(0.5) and found[7] == found[4] == pytest.approx(0.25)
    assert found.sum() == pytest.approx(1)
