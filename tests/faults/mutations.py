"""Good files and requests made hostile: bytes are changed anywhere, values where values stand."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

# What parsers stumble over: numbers beyond all sizes, marks of encodings, quotes, brackets, controls.
_PIECES = [
    b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", b'"', b'""',
    b"'", b",", b";", b"\t", b"\r", b"\n", b"\r\n", b"\\", b"\\u0000", b"\\ud800", b"[", b"]", b"{", b"}",
    b"[" * 3000, b'{"a":' * 3000, b"&a", b"*a", b"<<: *a", b"!!python/object/apply:os.system", b"---\n", b"#", b"%",
    b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-1", b"0", b"2147483648", b"18446744073709551616",
    b"9" * 500, b"0x10", b"0.1", b"../../../../etc/passwd", b"/dev/zero", b"text", b"label", b"id", b"=cmd()",
    b"a" * 70_000, b"\x80\x04\x95", b"PAR1", b"\xf0\x9f\x98\x80", b"\xe2\x80\x8b", b"\x1b[31m", b": ", b"- ",
    b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"HTTP/1.1", b"ffffffffffffffff\r\n",
]  # fmt: skip

_VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 7, 255, 65_536, 2**31, -(2**31) - 1, 2**53, 2**63, 2**64, 10**30, 0.0, -0.0,
    0.5, 1.5, 1e-320, 1e308, -1e308, float("nan"), float("inf"), "", " ", "0", "-1", "1e9", "null", "a", "\0",
    "\ud800", "\u202e", "x" * 5000, "../../etc/passwd", "/etc/passwd", "/dev/zero", "\n", "'", '"', [], {}, [[]],
    [None], [0], ["a"], [1, "a", None], {"a": 1}, {"": {}}, {"__class__": "a"}, list(range(3000)),
]  # fmt: skip


def mutate_bytes(dice: random.Random, data: bytes, *, most: int = 4) -> bytes:
    """Changes bytes in up to ``most`` places."""
    for _ in range(dice.randint(1, most)):
        data = _mutate_once(dice, data)
    return data


def _mutate_once(dice: random.Random, data: bytes) -> bytes:
    start, other = dice.randint(0, len(data)), dice.randint(0, len(data))
    length = int(dice.expovariate(1 / 20))
    before, part, behind = data[:start], data[start : start + length], data[start + length :]
    kind = dice.randrange(9)
    if kind == 0 and behind:
        return before + part + bytes([behind[0] ^ (1 << dice.randrange(8))]) + behind[1:]
    middles = {
        0: b"",
        1: b"",
        2: part * 2,
        3: part * dice.randint(2, 2000),
        4: dice.randbytes(dice.randint(1, 8)),
        5: data[other : other + length],
        6: dice.choice(_PIECES) + part,
        7: dice.choice(_PIECES),
    }
    return before if kind == 8 else before + middles[kind] + behind


def mutate_value(dice: random.Random, value: Any, *, most: int = 2) -> Any:
    """Changes a plain value in up to ``most`` places; the value that is given stays as it is."""
    value = copy.deepcopy(value)
    for _ in range(dice.randint(1, most)):
        value = _change_one(dice, value)
    return value


def _change_one(dice: random.Random, value: Any) -> Any:
    holders = [holder for holder in _holders(value) if holder]
    if not holders:
        return dice.choice(_VALUES)
    holder = dice.choice(holders)
    keys: list[Any] = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    key = dice.choice(keys)
    kind = dice.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[dice.choice(["", "x", "text", "__proto__", f"{key}_", str(key)[:-1], "\ud800"])] = holder.pop(key)
    elif kind == 2:
        other = dice.choice(keys)
        holder[key], holder[other] = holder[other], holder[key]
    elif kind == 3 and isinstance(holder[key], int | float):
        holder[key] = holder[key] * dice.choice([-1, 0, 2, 10, 1000, 10**6, 10**12]) + dice.choice([-1, 0, 1])
    elif kind == 4:
        deep: Any = holder[key]
        for _ in range(dice.choice([1, 2, 60, 900])):
            deep = [deep] if dice.random() < 0.5 else {"a": deep}
        holder[key] = deep
    elif kind == 5 and isinstance(holder, list):
        holder.extend([holder[key]] * dice.choice([1, 5, 5 if isinstance(holder[key], dict | list) else 3000]))
    else:
        holder[key] = copy.deepcopy(dice.choice(_VALUES))
    return value


def _holders(value: Any) -> list[Any]:
    """Every mapping and list in a value."""
    found, waiting = [], [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict | list):
            found.append(one)
            waiting.extend(one.values() if isinstance(one, dict) else one)
    return found


def to_json(value: Any) -> bytes:
    """JSON as nobody should write it: NaN, infinities and halves of surrogate pairs go in."""
    try:
        return json.dumps(value).encode("utf-8", "surrogatepass")
    except RecursionError:
        # Made deep twice: beyond what Python's own writer can do, and so written by hand.
        return b'{"text": ' + b"[" * 2000 + b"]" * 2000 + b"}"
