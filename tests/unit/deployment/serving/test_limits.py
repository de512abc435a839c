"""Limits, keys and rates: a bucket for each client, counted as a plain one with fractions, and few of them."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.core.errors import ConfigurationError
from recurra.deployment.serving import server
from recurra.deployment.serving.limits import ApiKeys, Rate, RateLimiter, ServerLimits, network_of, read_keys

KEYS = ["0123456789abcdef", "fedcba9876543210", "a-third-key-of-ours"]


class Bucket:
    """A token bucket as textbooks have it."""

    def __init__(self, rate: Rate) -> None:
        self.rate, self.tokens, self.at = rate, Fraction(rate.requests), Fraction(0)

    def wait(self, now: Fraction) -> Fraction:
        a_second = Fraction(self.rate.requests, self.rate.seconds)
        self.tokens = min(Fraction(self.rate.requests), self.tokens + (now - self.at) * a_second)
        self.at = now
        if self.tokens >= 1:
            self.tokens -= 1
            return Fraction(0)
        return (1 - self.tokens) / a_second


@given(
    requests=st.integers(1, 9),
    seconds=st.sampled_from([1, 60]),
    steps=st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["a", "b", 0])), max_size=60),
)
def test_everyone_has_a_bucket(requests: int, seconds: int, steps: list[tuple[int, str | int]]) -> None:
    rate = Rate(requests, seconds)
    clock = SimpleNamespace(now=1000.0)
    found = RateLimiter(rate, clock=lambda: clock.now)
    buckets: dict[str | int, Bucket] = {}
    now = Fraction(0)
    for quarters, who in steps:
        now += Fraction(quarters * seconds, 16)
        clock.now = 1000.0 + float(now)
        wanted = buckets.setdefault(who, Bucket(rate)).wait(now)
        assert found.wait_s(who) == pytest.approx(float(wanted), abs=1e-6)


def test_state_has_a_bound_and_nobody_is_forgotten_early() -> None:
    clock = SimpleNamespace(now=1000.0)
    found = RateLimiter(Rate(2, 60), 10, lambda: clock.now)
    assert [found.wait_s("first") == 0 for _ in range(3)] == [True, True, False]
    for number in range(1000):
        found.wait_s(f"10.0.{number // 256}.{number % 256}")
    # Ten addresses, and the bucket that those beyond share.
    assert len(found._full_at) == 11
    assert found.wait_s("first") > 0 and found.wait_s("one more") > 0
    # Who has a key is not among them.
    assert found.wait_s(0) == 0 and found.wait_s(1) == 0
    clock.now += 60
    assert found.wait_s("one more") == 0
    for number in range(1000):
        clock.now += 60
        assert found.wait_s(f"later {number}") == 0
    assert len(found._full_at) <= 11
    # A client that spends its burst and leaves does not keep others remembered.
    found = RateLimiter(Rate(2, 60), 10, lambda: clock.now)
    for client in ("heavy", "heavy", *(f"light {number}" for number in range(9))):
        assert found.wait_s(client) == 0
    clock.now += 31
    assert [found.wait_s(f"new {number}") for number in (1, 2, 3) for _ in range(2)] == [0] * 6
    assert found.wait_s("heavy") == 0 and found.wait_s("heavy") > 0


def test_an_address_counts_with_its_network() -> None:
    assert network_of("192.0.2.7") == network_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert network_of("2001:db8:1:2::7") == network_of("2001:db8:1:2:ffff::1") == "2001:db8:1:2::/64"
    assert network_of("2001:db8:1:3::7") != network_of("2001:db8:1:2::7")
    assert network_of("fe80::1%eth0") == "fe80::/64" and network_of("") == ""


def test_a_server_has_the_bounds_that_are_documented() -> None:
    page = (Path(__file__).parents[4] / "docs" / "explanation" / "trust.md").read_text(encoding="utf-8")
    limits = ServerLimits()
    assert limits.body_timeout_s == limits.timeout_s
    for bound in (
        f"| {limits.max_body_bytes // 2**20} MiB (`--max-body-bytes`);",
        f"| bodies of all requests | {limits.max_held_bytes // 2**20} MiB |",
        f"| {limits.max_texts} (`--max-texts`); {limits.max_characters:,} (`--max-characters`) |",
        f"| time for headers, body, answer | {limits.timeout_s:g} s each (the last: `--timeout-s`) |",
        f"| request line and headers; trailers and chunk framing | {server._MOST_HEAD_BYTES / 1024:g} KiB each |",
        f"| connections; requests sent ahead on one | {limits.max_connections}; {server._MOST_AHEAD} |",
        f"| {limits.max_waiting_texts:,} (`--max-waiting-texts`); {limits.max_wait_s:g} s (`--max-wait-s`) |",
    ):
        assert bound in page, bound


def test_rates_are_read() -> None:
    for text, rate in {"1/s": Rate(1, 1), "600/m": Rate(600, 60), "999999/h": Rate(999_999, 3600)}.items():
        assert Rate.parse(text) == rate
    for text in ("", "100", "0/s", "-1/s", "1.5/s", "1/d", "1/s ", "1000000/s", "١/s", "1/s\n"):
        with pytest.raises(ConfigurationError, match=r"is not a rate; give 1 to 999999 requests .*: 100/s, 600/m or"):
            Rate.parse(text)


def test_keys_are_told_apart() -> None:
    keys = ApiKeys(KEYS)
    assert [keys.owner({"authorization": f"bearer  {key}"}) for key in KEYS] == [0, 1, 2]
    assert [keys.owner({"x-api-key": key}) for key in KEYS] == [0, 1, 2]
    for wrong in ("", KEYS[0][:-1], KEYS[0] + "0", " ".join(KEYS), "\ud800"):
        assert keys.owner({"x-api-key": wrong}) is None
    # What is said first counts, right or not.
    assert keys.owner({"authorization": "Bearer wrong", "x-api-key": KEYS[0]}) is None
    ApiKeys([f"{number:016}" for number in range(100)])
    for several in ([], [KEYS[0]] * 2, [f"{number:016}" for number in range(101)]):
        said = f"there are {len(several)} API keys, .* 1 to 100, one a line, each once"
        with pytest.raises(ConfigurationError, match=said):
            ApiKeys(several)
    for key in ("0123456789abcde", "0123456789abcdeé", "0123456789 abcdef", "0123456789abcde\x7f", ""):
        said = f"has {len(key)} characters; at least 16 printable ASCII characters"
        with pytest.raises(ConfigurationError, match=said):
            ApiKeys([key])


def test_keys_are_read_from_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, broken = tmp_path / "keys.txt", tmp_path / "broken.txt"
    file.write_text(f"\ufeff{KEYS[0]}\n\n  {KEYS[1]}  \n", encoding="utf-8")
    broken.write_bytes(b"\xff\xfe\xfd" * 9)
    monkeypatch.setenv("OUR_KEYS", f"{KEYS[2]}\n{KEYS[1]}")
    monkeypatch.delenv("NO_KEYS", raising=False)
    of_file, of_variable = read_keys(file, None), read_keys(None, "OUR_KEYS")
    assert of_file is not None and of_variable is not None
    assert [of_file.owner({"x-api-key": key}) for key in KEYS] == [0, 1, None]
    assert [of_variable.owner({"x-api-key": key}) for key in KEYS] == [None, 1, 0]
    assert read_keys(None, None) is None
    for path, variable, said in (
        (file, "OUR_KEYS", "both given; give one of the two"),
        (None, "NO_KEYS", "'NO_KEYS' of --api-key-env is not set"),
        (tmp_path / "none.txt", None, r"cannot read the API key from '.*none.txt'"),
        (broken, None, "cannot read the API key"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            read_keys(path, variable)
