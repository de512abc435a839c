"""What mutation testing changes and leaves alone, and whether what it excuses still stands in the source."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path
from typing import Any

import pytest

from faults.mutation import figures_of
from faults.mutations import mutate_value
from mutants.rooms import REPOSITORY, ROOMS

SOURCE = '''"""A module of words."""

from __future__ import annotations

Floats = npt.NDArray[np.float64]
LIMIT = 3


def cut(text: str, most: int = 5) -> list[str]:
    """Cuts a text."""
    if len(text) > most:
        raise DataError(f"'{text}' is long", 7)
    logger.warning("cut %s", text)
    return zip(text, text, strict=True)
'''


def test_what_is_listed_as_a_survivor_still_stands_there_and_has_a_reason() -> None:
    listed = tomllib.loads((REPOSITORY / "tests" / "mutants" / "survivors.toml").read_text(encoding="utf-8"))["mutant"]
    assert listed
    for entry in listed:
        lines = (REPOSITORY / entry["file"]).read_text(encoding="utf-8").splitlines()
        assert entry["before"] in " ".join(line.strip() for line in lines), entry
        assert entry["before"] != entry["after"] and len(entry["reason"].split()) > 3, entry


def test_every_room_has_files_and_tests() -> None:
    for room in ROOMS.values():
        assert room.sources() and room.test_files()
        assert all((REPOSITORY / path).is_file() for path in (*room.sources(), *room.test_files()))
    assert all(list((REPOSITORY / "tests").glob(pattern)) for room in ROOMS.values() for pattern in room.tests)


@pytest.mark.parametrize(("drawn", "listed", "least"), [(12, 0, 8), (14, 2, 8), (100, 0, 79), (3, 3, 0)])
def test_a_room_misses_its_bound_only_beyond_chance(drawn: int, listed: int, least: int) -> None:
    (figure,) = figures_of({"room": "data", "drawn": drawn, "listed": listed, "killed": least})
    assert (figure.value, figure.least, figure.holds) == (least, least, True)
    assert f"of {drawn - listed}" in figure.name


def test_code_is_changed_and_what_it_says_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mutmut", reason="pip install mutmut")
    from mutants import changes

    monkeypatch.setattr(changes, "REPOSITORY", tmp_path)
    (tmp_path / "a.py").write_text(SOURCE, encoding="utf-8")
    count, drawn = changes.draw([Path("a.py")], 0, "1")
    assert {mutant.after for mutant in drawn} == {
        "LIMIT = 4", "LIMIT = None", "def cut(text: str, most: int = 6) -> list[str]:", "if len(text) >= most:",
        "raise DataError(f\"'{text}' is long\", 8)", "return zip(None, text, strict=True)",
        "return zip(text, None, strict=True)", "return zip(text, strict=True)",
    }  # fmt: skip
    assert {mutant.scope for mutant in drawn} == {"", "cut"} and count >= len(drawn)
    assert changes.draw([Path("a.py")], 3, "1")[1] == drawn[:3]
    assert all(mutant.source != SOURCE and mutant.before in SOURCE for mutant in drawn)


def test_a_live_function_takes_the_changed_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mutmut", reason="pip install mutmut")
    from mutants import trial
    from mutants.changes import Mutant

    (tmp_path / "src").mkdir()
    file = tmp_path / "src" / "swapped_in_a_test.py"
    source = "def outer():\n    def inner(x):\n        return x + 1\n    return inner\n\nheld = outer()\n"
    file.write_text(source, encoding="utf-8")
    monkeypatch.setattr(trial, "REPOSITORY", tmp_path)
    monkeypatch.syspath_prepend(str(file.parent))
    import swapped_in_a_test as module

    held = module.held
    changed = source.replace("x + 1", "x - 1")
    trial.swap_code(Mutant("src/swapped_in_a_test.py", "outer", 3, 3, "return x + 1", "return x - 1", changed))
    assert (held(5), module.outer()(5)) == (4, 4)
    with pytest.raises(LookupError, match="no function nothing"):
        trial.swap_code(Mutant("src/swapped_in_a_test.py", "nothing", 3, 3, "", "", changed))


def test_a_room_whose_tests_fail_by_themselves_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mutmut", reason="pip install mutmut")
    from mutants.__main__ import check_control
    from mutants.trial import Verdict

    check_control("data", [Verdict("survived"), Verdict("unreached")])
    check_control("data", [])
    killed, slow = Verdict("killed", "tests/a.py::test_b"), Verdict("time")
    check_control("data", [Verdict("survived"), killed])
    assert "nothing changed, and may have killed others: tests/a.py::test_b" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match=r"nothing changed \(tests/a.py::test_b, too slow\); no mutant was tried"):
        check_control("data", [killed, slow])


def test_a_value_of_any_depth_is_changed_and_the_one_that_was_given_is_not() -> None:
    value: Any = "end"
    for number in range(20_000):
        value = [value] if number % 2 else {"a": value}
    found, depth = mutate_value(random.Random(1), value), 0
    assert found is not value
    while not isinstance(value, str):
        value, depth = value[0] if isinstance(value, list) else value["a"], depth + 1
    assert depth == 20_000
