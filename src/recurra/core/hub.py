"""Fetches files from the public hub without hanging if there is no network."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recurra.core.errors import UnavailableError

# The hub's own client retries for 20 s and more before it reports that the name does not resolve.
DEADLINE_S = 5.0


def hub_offline() -> bool:
    """Whether the hub client's own switch (``HF_HUB_OFFLINE``) forbids the network."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def hub_reachable() -> bool:
    """Whether the hub answers within `DEADLINE_S`; respects its client's offline switch and the system's proxies."""
    answer: list[bool] = []
    # Name resolution has no time limit of its own; only a thread that may be abandoned gives one.
    thread = threading.Thread(target=_ask, args=(answer,), daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    return bool(answer) and answer[0]


def _ask(answer: list[bool]) -> None:
    # These imports are slow and seldom needed.
    import urllib.error
    import urllib.request

    from huggingface_hub import constants

    if hub_offline():
        return
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD", headers={"User-Agent": "recurra"})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S):
            answer.append(True)
    except urllib.error.HTTPError as error:
        # A refusal is an answer: the client may hold a token that this question does not send.
        answer.append(error.code < 500)
    except (OSError, ValueError):
        return


def hub_file(repository: str, name: str) -> Path:
    """Returns the local path of a file of a public repository, from the hub's cache or fetched now."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(repository, name, local_files_only=True))
    except LocalEntryNotFoundError as error:
        if not hub_reachable():
            raise UnavailableError(f"'{repository}' is not in the local cache and the hub cannot be reached") from error
    except HFValidationError as error:
        raise UnavailableError(f"'{repository}' can be no name on the hub") from error
    try:
        return Path(hf_hub_download(repository, name, etag_timeout=DEADLINE_S))
    except (OSError, HfHubHTTPError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnavailableError(f"cannot fetch '{name}' of '{repository}': {reason}") from error


def hub_dataset(public_name: str, configuration: str | None) -> Mapping[str, Any]:
    """Loads a data set by its public name, from the hub's cache or fetched now; errors name their reason only."""
    # With the client's offline switch on, `datasets` looks into its cache only and answers at once.
    if not hub_offline() and not hub_reachable():
        raise UnavailableError(f"the hub cannot be reached for '{public_name}'")
    import datasets

    try:
        names = (public_name,) if configuration is None else (public_name, configuration)
        result: Mapping[str, Any] = datasets.load_dataset(*names)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnavailableError(f"'{public_name}' cannot be loaded ({reason})") from error
    return result


def broken_folder_errors() -> tuple[type[Exception], ...]:
    """The errors that Hugging Face's libraries raise for a folder with damaged files, for use in ``except``.

    These libraries do not check the types of a configuration's values. This is a function so that nothing is imported
    before there is an error.
    """
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    values = (AttributeError, ImportError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
    return (*values, OSError, RuntimeError, SafetensorError, StrictDataclassError)
