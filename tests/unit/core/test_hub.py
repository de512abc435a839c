from __future__ import annotations

import threading
import urllib.error
import urllib.request

import pytest

from recurra.core import hub


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return monkeypatch


def test_the_offline_switch_is_honoured_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("asked the network")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    assert not hub.hub_reachable()


@pytest.mark.parametrize(
    ("error", "reachable"),
    [
        (urllib.error.URLError("no name"), False),
        (TimeoutError(), False),
        (urllib.error.HTTPError("u", 401, "who", {}, None), True),
        (urllib.error.HTTPError("u", 503, "down", {}, None), False),
    ],
)
def test_answers(online: pytest.MonkeyPatch, error: Exception, reachable: bool) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    online.setattr(urllib.request, "urlopen", fail)
    assert hub.hub_reachable() is reachable


def test_a_name_server_that_hangs_is_left_behind(online: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(*_: object, **__: object) -> None:
        release.wait(200)
        raise TimeoutError

    online.setattr(urllib.request, "urlopen", hang)
    try:
        online.setattr(hub, "DEADLINE_S", 0.05)
        assert not hub.hub_reachable()
    finally:
        release.set()
