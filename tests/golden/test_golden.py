"""What the committed records give stays what it was: identities of runs, reports, tables and figures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from golden.render import DIGESTS, render_study, study_names

HOW_TO_LOOK = (
    "see them: python tests/golden/render.py FOLDER here and, into another folder, at the commit before, then diff -r; "
    "if they are meant: python tests/golden/render.py --update"
)
KEPT: dict[str, dict[str, dict[str, str]]] = json.loads(DIGESTS.read_text(encoding="utf-8"))


def differences(kept: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Names of what is missing, new, or another, each with what happened to it."""
    return [
        f"{'new' if name not in kept else 'missing' if name not in found else 'changed'}: {name}"
        for name in sorted({*kept, *found})
        if kept.get(name) != found.get(name)
    ]


def test_every_study_with_records_is_kept() -> None:
    assert differences(dict.fromkeys(KEPT), dict.fromkeys(study_names())) == [], HOW_TO_LOOK


@pytest.mark.parametrize("name", KEPT)
def test_records_give_what_they_gave(name: str) -> None:
    found = render_study(name).digests()
    for kind, kept in KEPT[name].items():
        changed = differences(kept, found[kind])
        assert not changed, "\n".join([f"{kind} of '{name}' are not what they were:", *changed, HOW_TO_LOOK])
