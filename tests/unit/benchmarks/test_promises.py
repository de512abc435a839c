"""Promises on fresh rows: what is counted as broken."""

from __future__ import annotations

from pathlib import Path

from benchmarks.promises import Kept, promises, table
from hypothesis import given
from hypothesis import strategies as st

RESULTS = Path(__file__).resolve().parents[3] / "results"


@given(st.integers(1, 2_000), st.floats(0, 1), st.sampled_from([0.8, 0.95]))
def test_broken_beyond_chance_is_broken_and_a_kept_promise_is_not(answered: int, share: float, target: float) -> None:
    one = Kept("a", target, answered, answered, round(share * answered))
    assert one.broken or not one.beyond_chance
    assert one.broken == (one.right / answered < target)
    # Ten standard deviations are no chance.
    assert one.beyond_chance or one.right > target * answered - 10 * (answered * target * (1 - target)) ** 0.5 - 1


def test_records_keep_what_they_promise_and_the_row_of_all_is_their_sum(tmp_path: Path) -> None:
    (tmp_path / "adapt").symlink_to(RESULTS / "adapt")
    found = list(promises(tmp_path))
    assert {one.corpus for one in found} == {"sst2"} and not any(one.beyond_chance for one in found)
    rows = table(found)
    for target in {one.target for one in found}:
        whole, *parts = (row for row in rows if row["promised"] == target)
        assert whole["corpus"] == "all" and whole["promises"] == sum(int(row["promises"]) for row in parts)
