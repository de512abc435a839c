"""What a server takes on, and for how long."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from pydantic import ConfigDict, Field

from recurra.core.configuration import Settings
from recurra.core.errors import ConfigurationError

_SECONDS = {"s": 1, "m": 60, "h": 3600}
_RATE = re.compile(r"([1-9][0-9]{0,5})/([smh])", re.ASCII)


@dataclass(frozen=True)
class Rate:
    """How often a client may ask.

    Attributes:
        requests: That many, all at once if need be.
        seconds: In so long.
    """

    requests: int
    seconds: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads ``100/s``, ``100/m`` or ``100/h``.

        Raises:
            ConfigurationError: If it is anything else.
        """
        found = _RATE.fullmatch(text)
        if found is None:
            raise ConfigurationError(
                f"'{text}' is no rate; give 1 to 999999 requests a second, a minute or an hour: 100/s, 600/m or 5000/h"
            )
        return cls(int(found[1]), _SECONDS[found[2]])

    def __str__(self) -> str:
        return f"{self.requests:,} requests in {self.seconds:,} s"


class ServerLimits(Settings):
    """Bounds of a server; whoever goes beyond one is told which.

    Attributes:
        max_body_bytes: Bytes of a request.
        max_texts: Texts of a request.
        max_characters: Characters of a text.
        body_timeout_s: Seconds within which a request must have arrived, its head and its body each.
        timeout_s: Seconds after which an accepted request is given up.
        batch_texts: Texts that are computed together.
        alone: Whether every request is computed by itself, so that no text shares a batch with those of another user.
            In int8 a batch shares a scale, and a probability may move in its third decimal with its neighbours.
        max_waiting_texts: Texts that wait for one model.
        max_wait_s: Expected wait above which a request is turned away.
        max_held_bytes: Bytes of all requests that are in memory.
        max_connections: Open connections.
        rate: How often a key may ask, or an address without one; none is no limit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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
