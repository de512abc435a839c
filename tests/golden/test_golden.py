"""Committed records keep their identities and give the numbers that they gave."""

from __future__ import annotations

import pytest

from golden.kept_numbers import IDENTITIES, NUMBERS, read, study_names, study_numbers

KEPT_IDENTITIES, KEPT_NUMBERS = read(IDENTITIES), read(NUMBERS)
MEANT = "if it is meant: python tests/golden/kept_numbers.py, and the reason in the commit"


def test_every_study_with_records_is_here() -> None:
    assert list(KEPT_IDENTITIES) == study_names(), MEANT


@pytest.mark.parametrize("name", KEPT_IDENTITIES)
def test_records_give_what_they_gave(name: str) -> None:
    identities, numbers = study_numbers(name)
    assert identities == KEPT_IDENTITIES[name], MEANT
    differences = sorted(set(numbers) ^ set(KEPT_NUMBERS[name]))
    assert not differences, "\n".join([MEANT, *map(str, differences[:40])])
