from __future__ import annotations

import threading
import urllib.error
import urllib.request

import pytest

from recurra.core import hub
from recurra.core.errors import UnavailableError
from recurra.models.adaptation.source import find_encoder


@pytest.mark.parametrize(
    ("error", "offline", "reachable"),
    [
        (urllib.error.URLError("no name"), False, False),
        (TimeoutError(), False, False),
        (urllib.error.HTTPError("u", 401, "who", {}, None), False, True),
        (urllib.error.HTTPError("u", 503, "down", {}, None), False, False),
        (urllib.error.HTTPError("u", 401, "who", {}, None), True, False),
    ],
)
def test_answers(error: Exception, offline: bool, reachable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(urllib.request, "urlopen", fail)
    assert hub.hub_reachable() is reachable


@pytest.mark.parametrize("name", ["my encoders/mini", "encoders/mini--2"])
def test_a_missing_folder_whose_name_the_hub_forbids_is_one_line(name: str) -> None:
    with pytest.raises(UnavailableError, match=f"encoder '{name}' is no folder here, and '{name}' can be no name on"):
        find_encoder(name)


def test_a_name_server_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(*_: object, **__: object) -> None:
        release.wait(200)
        raise TimeoutError

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(urllib.request, "urlopen", hang)
    monkeypatch.setattr(hub, "DEADLINE_S", 0.05)
    try:
        assert not hub.hub_reachable()
    finally:
        release.set()
