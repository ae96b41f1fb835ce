"""What every comparison of messages needs: fields, lists of named items, their order."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from google.protobuf.unknown_fields import UnknownFieldSet

from tna_onnx.graph.difference.texts import arrow, shortened
from tna_onnx.graph.difference.values import Difference

__all__ = ["by_name", "field_differences", "item_differences", "moved", "serialized"]

_UNKNOWN = "unknown fields"

# Bytes of a field from which its digest is compared.
_LARGE = 2**20


def serialized(message: Any) -> bytes:
    """Return the bytes of a message, the same for equal messages."""
    return bytes(message.SerializeToString(deterministic=True))


def field_differences(
    part: str, name: str, old: Any, new: Any, apart: set[str], *, encoded: bool = False
) -> Iterator[Difference]:
    """Compare the fields of two messages, those in `apart` left out; `encoded` tells an empty field from none."""
    before = _field_bytes(old, apart, encoded)
    after = _field_bytes(new, apart, encoded)
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            yield Difference(part, name or key, key if name else "changed", _field_detail(old, new, key))


def _field_detail(old: Any, new: Any, key: str) -> str:
    """Return before and after of a field that is a number or a text."""
    if key == _UNKNOWN:
        return ""
    after = getattr(new, key)
    if isinstance(after, bytes) or not np.isscalar(after):
        return ""
    return arrow(shortened(getattr(old, key)), shortened(after))


def _field_bytes(message: Any, apart: set[str], encoded: bool) -> dict[str, bytes]:
    """Serialise every field that is not empty or 0, those unknown to this version of ONNX together."""
    fields = {}
    for descriptor, value in message.ListFields():
        empty = np.isscalar(value) and not value and not encoded
        if descriptor.name not in apart and not empty:
            fields[descriptor.name] = _one_field(message, descriptor.name, value)
    fields[_UNKNOWN] = _unknown(message)
    return fields


def _unknown(message: Any) -> bytes:
    """Serialise the fields that this version of ONNX does not know."""
    if not len(UnknownFieldSet(message)):  # a copy of a message may be large
        return b""
    rest = type(message)()
    rest.CopyFrom(message)
    for descriptor, _ in message.ListFields():
        rest.ClearField(descriptor.name)
    return serialized(rest)


def _one_field(message: Any, name: str, value: Any) -> bytes:
    if isinstance(value, bytes):  # text that is not UTF-8 is bytes, too, and cannot be set
        # of large weights no copies are kept side by side
        return hashlib.sha256(value).digest() if len(value) > _LARGE else value
    part = type(message)()
    if hasattr(value, "MergeFrom"):
        getattr(part, name).MergeFrom(value)
    else:
        setattr(part, name, value)
    return serialized(part)


def item_differences(
    part: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    text: Callable[[Any], str],
    identity: Callable[[Any], Any] = lambda item: item,
) -> Iterator[Difference]:
    """Compare two lists of named items."""
    for name, item in old.items():
        if name not in new:
            yield Difference(part, name, "removed", text(item))
        elif identity(item) != identity(new[name]):
            yield Difference(part, name, "changed", _change_text(text(item), text(new[name])))
    yield from (Difference(part, name, "added", text(item)) for name, item in new.items() if name not in old)
    yield from (Difference(part, name, "moved") for name in moved(old, new))


def _change_text(before: str, after: str) -> str:
    if before == after:  # what changed does not show, such as a doc string
        return ""
    return arrow(before, after)


def by_name(items: Iterable[Any]) -> dict[str, Any]:
    """Return items by name; of a name that comes again, with its number."""
    named: dict[str, Any] = {}
    for item in items:
        key = item.name
        if key in named:
            copies = sum(other == item.name or other.startswith(f"{item.name} (") for other in named)
            key = f"{item.name} ({copies + 1})"
        named[key] = item
    return named


def moved(old: Iterable[str], new: Iterable[str]) -> list[str]:
    """Return the fewest names that, taken out, leave the common names in the same order.

    What stays is a longest increasing subsequence of the names' old places.
    """
    place = {name: k for k, name in enumerate(old)}
    names = [name for name in new if name in place]
    ends: list[int] = []  # last place of the best increasing run of each length
    at = [-1]  # index of the name at that place; -1 for the run of no names
    before: list[int] = []  # index of the predecessor of each name in its run
    for k, name in enumerate(names):
        length = bisect_left(ends, place[name])
        ends[length : length + 1] = [place[name]]
        at[length + 1 : length + 2] = [k]
        before.append(at[length])
    kept = set()
    k = at[-1]
    while k >= 0:
        kept.add(k)
        k = before[k]
    return [name for k, name in enumerate(names) if k not in kept]
