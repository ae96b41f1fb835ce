"""Run cases of a family and count how they end; a case that takes too long counts as blocked."""

from __future__ import annotations

import collections
import random
import resource
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tna_onnx.errors import TnaError

_SECONDS = 20
_MEMORY = 4 * 2**30  # bytes of address space beyond what the process has: what a small file must not ask for


class Blocked(BaseException):
    """Raised by the alarm; no `except Exception` stops it."""


@dataclass
class Counts:
    """How cases ended, and the first case of each kind of traceback."""

    ends: collections.Counter[str] = field(default_factory=collections.Counter)
    examples: dict[str, str] = field(default_factory=dict)

    @property
    def bad(self) -> int:
        """Cases that ended in another way than done or refused."""
        return sum(count for end, count in self.ends.items() if end not in ("done", "refused"))

    def __str__(self) -> str:
        """Return one line."""
        names = ("refused", "done", "traceback", "blocked", "wrong")
        return f"{sum(self.ends.values()):6} tried" + "".join(f", {self.ends[name]} {name}" for name in names)


def run_cases(case: Callable[[random.Random], Any], n: int, seed: int = 0) -> Counts:
    """Run `case` n times, each with a generator of its own, so that any of them can be run again.

    A case returns; it raises an error of this package where it refuses, and AssertionError where a result is wrong.
    """
    counts = Counts()

    def alarm(*_: object) -> None:
        raise Blocked

    before = signal.signal(signal.SIGALRM, alarm)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        now = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + _MEMORY, limits[1]))
    try:
        for k in range(n):
            end = _end(case, f"{seed}-{k}", counts)
            counts.ends[end] += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, before)
    return counts


def _end(case: Callable[[random.Random], Any], name: str, counts: Counts) -> str:
    signal.alarm(_SECONDS)
    try:
        case(random.Random(name))
    except TnaError:
        return "refused"
    except AssertionError as error:
        counts.examples.setdefault(f"wrong: {error}", name)
        return "wrong"
    except Blocked:
        counts.examples.setdefault(f"blocked: {traceback.format_exc(limit=-2)}", name)
        return "blocked"
    except Exception as error:  # noqa: BLE001 - these are what is looked for
        frames = traceback.extract_tb(error.__traceback__)
        place = next((f"{f.filename}:{f.lineno}" for f in reversed(frames) if "tna_onnx" in f.filename), "?")
        counts.examples.setdefault(f"{type(error).__name__} at {place}: {str(error)[:120]}", name)
        return "traceback"
    finally:
        signal.alarm(0)
    return "done"
