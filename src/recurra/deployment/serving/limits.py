"""What a server accepts and from whom: limits, API keys and rates, and the answers to requests beyond them."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import Field

from recurra.core.configuration import Settings
from recurra.core.errors import ConfigurationError

# Default headers of answers: they are not documents, not shown in frames and not stored.
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # For browsers that do not know frame-ancestors.
    "X-Frame-Options": "DENY",
}
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_RATE = re.compile(r"([1-9][0-9]{0,5})/([smh])", re.ASCII)
_LEAST_KEY_CHARACTERS = 16
# Bounded, because each request's key is compared with all of them.
_MOST_KEYS = 100
# Most addresses that are remembered at a time; further ones share one rate.
_MOST_CLIENTS = 10_000
_SWEEP_EVERY_S = 1.0
# Prefix length of the network that a client with an IPv6 address is assumed to own.
_IPV6_NETWORK_BITS = 64


@dataclass(frozen=True)
class Rate:
    """How many requests a client may send in a number of seconds; it may send all at once."""

    requests: int
    seconds: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads ``100/s``, ``100/m`` or ``100/h``."""
        match = _RATE.fullmatch(text)
        if match is None:
            raise ConfigurationError(
                f"'{text}' is not a rate; give 1 to 999999 requests a second, minute or hour: 100/s, 600/m or 5000/h"
            )
        return cls(int(match[1]), _SECONDS[match[2]])

    def __str__(self) -> str:
        return f"{self.requests:,} requests in {self.seconds:,} s"


class ServerLimits(Settings):
    """Limits of a server; a client that goes beyond one is told which.

    Attributes:
        body_timeout_s: Seconds within which the head, and then the body, of a request must arrive.
        timeout_s: Seconds after which an accepted request is given up.
        alone: Whether every request is computed by itself, so that no text shares a batch with those of another user.
            In int8 a batch shares a scale: beside others 2 of 100 texts were given another label.
        rate: How often a key may ask, or an address without one; none is no limit.
    """

    max_body_bytes: int = Field(default=2 * 2**20, ge=1024)
    max_texts: int = Field(default=256, ge=1)
    max_characters: int = Field(default=100_000, ge=1)
    body_timeout_s: float = Field(default=10.0, gt=0)
    timeout_s: float = Field(default=10.0, gt=0)
    batch_texts: int = Field(default=32, ge=1)
    alone: bool = False
    max_waiting_texts: int = Field(default=2048, ge=1)
    max_wait_s: float = Field(default=2.0, gt=0)
    max_held_bytes: int = Field(default=64 * 2**20, ge=1024)
    max_connections: int = Field(default=512, ge=1)
    rate: Rate | None = None


class Refusal(Exception):  # noqa: N818 - it is an answer, not a failure of the server
    """Ends a request with an error answer: a code for programs, a sentence for people."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}


def error_body(code: str, message: str) -> bytes:
    """Returns the JSON document of an error answer."""
    return json.dumps({"error": {"code": code, "message": message}}, separators=(",", ":")).encode("ascii")


def try_again(code: str, message: str, wait_s: float) -> Refusal:
    """Returns the answer to a client that should come back after some seconds."""
    seconds = max(1, math.ceil(wait_s))
    return Refusal(429, code, f"{message}; try again in {seconds} s", {"Retry-After": str(seconds)})


def stopping() -> Refusal:
    """Returns the answer while the server is being stopped."""
    return Refusal(503, "stopping", "the server is being stopped; try again in a moment", {"Retry-After": "1"})


class ApiKeys:
    """Recognises 1 to 100 different keys; only stores their hashes."""

    def __init__(self, keys: Sequence[str]) -> None:
        for key in keys:
            if len(key) < _LEAST_KEY_CHARACTERS or not key.isascii() or not key.isprintable() or " " in key:
                raise ConfigurationError(
                    f"the API key has {len(key)} characters; at least {_LEAST_KEY_CHARACTERS} printable ASCII "
                    "characters without blanks are needed; make one with: openssl rand -hex 32"
                )
        if not 1 <= len(set(keys)) == len(keys) <= _MOST_KEYS:
            raise ConfigurationError(
                f"there are {len(keys)} API keys, {len(set(keys))} of them different; give 1 to {_MOST_KEYS}, one a "
                "line, each once"
            )
        self._digests = [hashlib.sha256(key.encode("ascii")).digest() for key in keys]

    def owner(self, headers: Mapping[str, str]) -> int | None:
        """The index of the key in ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``; none if it is unknown.

        Hashes are compared in constant time, so that neither the position of the first wrong character nor the length
        can be measured.
        """
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        key = credentials.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return matches.index(True) if any(matches) else None


def read_keys(file: Path | None, variable: str | None) -> ApiKeys | None:
    """Reads the keys from a file or an environment variable, one per line; none if neither is given."""
    if file is not None and variable is not None:
        raise ConfigurationError("--api-key-file and --api-key-env are both given; give one of the two")
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"cannot read the API key from '{file}': {error}") from error
    elif variable is not None:
        if variable not in os.environ:
            raise ConfigurationError(f"the environment variable '{variable}' of --api-key-env is not set; set it")
        lines = os.environ[variable]
    else:
        return None
    return ApiKeys([line.strip() for line in lines.splitlines() if line.strip()])


class RateLimiter:
    """A token bucket for each client, by the generic cell rate algorithm (ITU-T I.371).

    For each client only the time at which its bucket is full again is stored. If too many clients are remembered, those
    with a full bucket are forgotten, once a second at most. While there are still too many, new addresses share a
    bucket, so that no client gets a full one by being forgotten.
    """

    def __init__(self, rate: Rate, most: int = _MOST_CLIENTS, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = rate.seconds / rate.requests
        self._burst_s = rate.seconds - self._interval_s
        self._most = most
        self._clock = clock
        self._full_at: dict[int | str | None, float] = {}
        self._next_sweep = -math.inf

    def wait_s(self, client: int | str) -> float:
        """Takes a token for a key's index or an address; returns 0, or the seconds until there is one."""
        now = self._clock()
        known = isinstance(client, int) or client in self._full_at
        bucket = client if known or self._has_room(now) else None
        full_at = max(self._full_at.get(bucket, now), now)
        wait_s = full_at - now - self._burst_s
        # The tolerance covers rounding errors of sums of many intervals.
        if wait_s > 1e-6 * self._interval_s:
            return wait_s
        self._full_at[bucket] = full_at + self._interval_s
        return 0.0

    def _has_room(self, now: float) -> bool:
        if len(self._full_at) >= self._most and now >= self._next_sweep:
            self._full_at = {client: full_at for client, full_at in self._full_at.items() if full_at > now}
            self._next_sweep = now + _SWEEP_EVERY_S
        return len(self._full_at) < self._most


def network_of(address: str) -> str:
    """The address that a client is counted by: an IPv4 address, or the network of an IPv6 address."""
    if ":" not in address:
        return address
    ipv6 = ipaddress.IPv6Address(address.partition("%")[0])
    if ipv6.ipv4_mapped is not None:
        return str(ipv6.ipv4_mapped)
    return str(ipaddress.IPv6Network((ipv6, _IPV6_NETWORK_BITS), strict=False))
