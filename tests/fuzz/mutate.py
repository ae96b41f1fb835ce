"""Mutations of bytes and of JSON: a few of the kinds that parsers trip over."""

import json
import random
from typing import Any

_NUMBERS = [b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\xff" * 8, b"\x00" * 8, b"\xff\xff\xff\x7f"]
_WORDS = [
    "[" * 3000,
    "9" * 5000,
    "-1",
    "1e999",
    "NaN",
    "\0",
    "\udcff",
    "..",
    "/etc/passwd",
    '"',
    ",",
    "\n",
    "{}",
    "null",
]
VALUES: list[Any] = [10**400, 5e-324,
    None, True, -1, 0, 2**63, 2**64, 10**30, 1e308, float("nan"), float("inf"), "", "x" * 300, "\0", "../..", [], {},
    [[]], {"a": 1}, [1, "a"], "0", "cat",
]  # fmt: skip


def mutated_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flip, overwrite, cut, repeat or insert, once to eight times; often near the front, where headers are."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(max(1, min(len(data), rng.choice([64, 512, len(data) + 1]))))
        match rng.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                part = rng.choice(_NUMBERS)
                data[at : at + len(part)] = part
            case 2:
                del data[at : at + rng.randint(1, 64)]
            case 3:
                data[at:at] = data[at : at + rng.randint(1, 64)] * rng.randint(1, 4)
            case 4:
                data[at:at] = rng.randbytes(rng.randint(1, 16))
            case _ if rng.random() < 0.3:
                del data[at:]
    return bytes(data)


def mutated_text(content: bytes, rng: random.Random) -> bytes:
    """Put words that parsers trip over into a text, or mutate its bytes."""
    if rng.random() < 0.4:
        return mutated_bytes(content, rng)
    text = content.decode("utf-8", "replace")
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(_WORDS) + text[at + rng.randint(0, 8) :]
    return text.encode("utf-8", "surrogatepass")


def mutated_json(content: bytes, rng: random.Random) -> bytes:
    """Replace values and keys of a JSON text; sometimes its bytes."""
    if rng.random() < 0.3:
        return mutated_text(content, rng)
    return json.dumps(_changed(json.loads(content), rng)).encode()


def _changed(value: Any, rng: random.Random) -> Any:
    if rng.random() < 0.15:
        return rng.choice(VALUES)
    if isinstance(value, dict):
        return {rng.choice([key, key, key, "labels"]): _changed(each, rng) for key, each in value.items()}
    if isinstance(value, list):
        return [_changed(each, rng) for each in value]
    return value
