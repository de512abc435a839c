"""Who asks, and how often they may: API keys compared in constant time, and a rate for each key or address."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from recurra.core.errors import ConfigurationError
from recurra.deployment.serving.settings import Rate

_LEAST_CHARACTERS = 16
# Each request is compared with all of them.
_MOST_KEYS = 100
# Addresses that are remembered at a time; those beyond share one rate.
_MOST_CLIENTS = 10_000
# Who has an IPv6 address has a whole network of this length.
_IPV6_NETWORK_BITS = 64


class ApiKeys:
    """Knows keys when it sees them, and holds nothing but their hashes.

    Args:
        keys: One at least.

    Raises:
        ConfigurationError: If there is none or too many, one is there twice, too short or cannot stand in a header.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        for key in keys:
            if len(key) < _LEAST_CHARACTERS or not key.isascii() or not key.isprintable() or " " in key:
                raise ConfigurationError(
                    f"the API key has {len(key)} characters; at least {_LEAST_CHARACTERS} printable ASCII characters "
                    "without blanks are needed; make one with: openssl rand -hex 32"
                )
        if not 1 <= len(set(keys)) == len(keys) <= _MOST_KEYS:
            raise ConfigurationError(
                f"there are {len(keys)} API keys, {len(set(keys))} of them different; give 1 to {_MOST_KEYS}, one a "
                "line, each once"
            )
        self._digests = [hashlib.sha256(key.encode("ascii")).digest() for key in keys]

    def owner(self, headers: Mapping[str, str]) -> int | None:
        """The place of the key in ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``; none if there is none of ours.

        Hashes are compared, in constant time: neither the place of the first wrong character nor the length can be
        measured.
        """
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        given = credentials.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()
        found = None
        for place, wanted in enumerate(self._digests):
            if hmac.compare_digest(digest, wanted):
                found = place
        return found


def read_keys(file: Path | None, variable: str | None) -> ApiKeys | None:
    """Reads the keys from where the user says they are; none if neither is named.

    Args:
        file: A file with a key a line and nothing else.
        variable: Name of an environment variable with one key, or a key a line.

    Raises:
        ConfigurationError: If both are named, or there is no key there.
    """
    if file is not None and variable is not None:
        raise ConfigurationError("--api-key-file and --api-key-env are both given; give one of the two")
    if file is not None:
        try:
            return _keys_in(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"cannot read the API key from '{file}': {error}") from error
    if variable is not None:
        if variable not in os.environ:
            raise ConfigurationError(f"the environment variable '{variable}' of --api-key-env is not set; set it")
        return _keys_in(os.environ[variable])
    return None


def _keys_in(text: str) -> ApiKeys:
    return ApiKeys([line.strip() for line in text.splitlines() if line.strip()])


class RateLimiter:
    """A token bucket for each client, as the generic cell rate algorithm (ITU-T I.371) keeps it.

    Of a client only the moment is kept at which its bucket is full again; from then on it need not be remembered. Where
    too many are remembered, new addresses share a bucket: nobody gets a full one by making us forget.

    Args:
        rate: Requests and the seconds in which they may come; so many may come at once.
        most: Addresses that are remembered; keys always are.
        clock: Tells the time in seconds.
    """

    def __init__(self, rate: Rate, most: int = _MOST_CLIENTS, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = rate.seconds / rate.requests
        self._burst_s = rate.seconds - self._interval_s
        self._most = most
        self._clock = clock
        # Who was seen longest ago comes first.
        self._full_at: OrderedDict[int | str | None, float] = OrderedDict()

    def wait_s(self, client: int | str) -> float:
        """Takes a token; returns 0, or, if there is none, the seconds until there is one.

        Args:
            client: Number of a key, or an address.
        """
        now = self._clock()
        known = isinstance(client, int) or client in self._full_at
        who = client if known or self._has_room(now) else None
        full_at = max(self._full_at.get(who, now), now)
        wait_s = full_at - now - self._burst_s
        # Sums of many intervals are off by rounding.
        if wait_s > 1e-6 * self._interval_s:
            return wait_s
        self._full_at[who] = full_at + self._interval_s
        self._full_at.move_to_end(who)
        return 0.0

    def _has_room(self, now: float) -> bool:
        while self._full_at:
            oldest = next(iter(self._full_at))
            if self._full_at[oldest] > now:
                break
            del self._full_at[oldest]
        return len(self._full_at) < self._most


def network_of(address: str) -> str:
    """The address that is counted for a client: its own, or the network of an IPv6 address."""
    if ":" not in address:
        return address
    found = ipaddress.IPv6Address(address.partition("%")[0])
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, _IPV6_NETWORK_BITS), strict=False))
