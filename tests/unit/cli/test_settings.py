"""What is typed reaches the settings that a command hands over, under every name that both have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from tests.unit.cli.test_command_line import commands

from recurra.adaptation import AdaptationOptions
from recurra.cli.main import main
from recurra.comparison import Asked
from recurra.deployment.export.manifest import ExportOptions
from recurra.deployment.generation import GenerationSettings
from recurra.deployment.prediction.folder import FolderJob
from recurra.deployment.serving.limits import Rate, ServerLimits

TYPED = {
    "--max-body-bytes": 2048, "--max-texts": 3, "--max-characters": 50, "--timeout-s": 7.5, "--batch-texts": 2,
    "--max-waiting-texts": 9, "--max-wait-s": 1.5,
}  # fmt: skip


def test_every_limit_of_a_server_that_is_typed_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[Any] = []
    monkeypatch.setattr("recurra.deployment.serving.server.serve", lambda _, limits, **__: handed.append(limits))
    typed = [str(part) for option in TYPED.items() for part in option]
    assert main(["serve", "exports/a", *typed, "--alone", "--rate-limit", "5/s"]) == 0
    (limits,) = handed
    assert isinstance(limits, ServerLimits) and limits.alone and limits.rate == Rate.parse("5/s")
    for option, value in TYPED.items():
        name = option.removeprefix("--").replace("-", "_")
        assert getattr(limits, name) == value != getattr(ServerLimits(), name)


@pytest.mark.parametrize("words", ["predict a", "predict a -i . -o b", "export a", "generate a", "adapt a"])
@pytest.mark.parametrize("name", ["cp1251x", "hex"])
def test_an_encoding_that_is_none_is_one_line(words: str, name: str, refused: Callable[..., str]) -> None:
    assert f"--encoding is '{name}': there is no such encoding" in refused(*words.split(), "--encoding", name)


# What a command works out, or leaves as it is: it has no option of that name.
WITHOUT_OPTION: dict[Any, tuple[str, set[str]]] = {
    AdaptationOptions: ("adapt", {"changes"}),
    Asked: ("compare", {"values", "protocol_keys", "prices"}),
    ExportOptions: ("export", {"abstain_below"}),
    FolderJob: ("predict", {"model"}),
    GenerationSettings: ("generate", {"rule"}),
    ServerLimits: ("serve", {"rate", "body_timeout_s", "max_held_bytes", "max_connections"}),
}


@pytest.mark.parametrize("kind", WITHOUT_OPTION, ids=lambda kind: kind.__name__)
def test_every_setting_has_an_option_of_its_name(kind: Any) -> None:
    name, without = WITHOUT_OPTION[kind]
    settings = {field.name for field in fields(kind) if field.init} if is_dataclass(kind) else set(kind.model_fields)
    options = {parameter.name for parameter in dict(commands())[name].params}
    assert settings - options == without
