"""Cases in child processes, so that a crash or an endless loop is counted and the next case goes on.

A case returns if it is done and verified. It raises `TnaError` where it refuses, and AssertionError where a result is
wrong; anything else is a traceback. Each case makes its input from its number and the seed, so any can be run again.
"""

import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tna_onnx.errors import TnaError

Case = Callable[[int, int, Path], None]
"""Number, seed, an empty folder."""

OUTCOMES = ("refused cleanly", "done and verified", "traceback", "blocked", "crashed", "silently wrong")
_SECONDS = 20.0  # for a case that takes a tenth of a second
_MEMORY = 4 * 2**30  # bytes of address space beyond what the process has: what a small file must not ask for


def outcome_of(case: Callable[[], None]) -> tuple[str, str]:
    """Run something that may raise; return how it ended, and what there is to say of that."""
    try:
        case()
    except TnaError as error:
        return ("refused cleanly", "") if str(error) else ("silently wrong", "an error without a text")
    except AssertionError:
        return "silently wrong", traceback.format_exc(limit=-3)
    except Exception:  # noqa: BLE001 - that is what is looked for
        return "traceback", traceback.format_exc(limit=-6)
    return "done and verified", ""


def campaign(name: str, case: Case, *, seed: int, cases: int = sys.maxsize, seconds: float = 1e9) -> Counter[str]:
    """Run cases, each child going on behind the case that ended the last; a bad end is told on standard error."""
    counts: Counter[str] = Counter()
    stop = time.monotonic() + seconds
    k = 0
    while k < cases and time.monotonic() < stop:
        end, write = os.pipe()
        process = os.fork()
        if not process:
            os.close(end)
            try:
                _child(name, case, range(k, cases), seed, stop, write)
            finally:
                os._exit(1)
        os.close(write)
        k, ending = _follow(end, process, k, counts)
        if ending:
            counts[ending] += 1
            sys.stderr.write(f"{name}, seed {seed}, case {k}: {ending}\n")
            k += 1
    return counts


def _child(name: str, case: Case, numbers: range, seed: int, stop: float, out: int) -> None:
    """Run cases until their time is over, and report each by a byte."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _MEMORY, limit))
    for k in numbers:
        if time.monotonic() > stop:
            break
        with tempfile.TemporaryDirectory() as folder:
            outcome, text = outcome_of(lambda k=k, folder=folder: case(k, seed, Path(folder)))
        if text:
            sys.stderr.write(f"{name}, seed {seed}, case {k}: {outcome}\n{text}\n")
            sys.stderr.flush()
        os.write(out, bytes([OUTCOMES.index(outcome)]))
    os._exit(0)


def _follow(end: int, process: int, k: int, counts: Counter[str]) -> tuple[int, str]:
    """Count what a child reports; returns the case that it did not get past, and why, if there is one."""
    ending = ""
    with os.fdopen(end, "rb", buffering=0) as stream:
        while True:
            if not select.select([stream], [], [], _SECONDS)[0]:
                os.kill(process, signal.SIGKILL)
                ending = "blocked"
                break
            told = stream.read(1)
            if not told:
                break
            counts[OUTCOMES[told[0]]] += 1
            k += 1
    status = os.waitpid(process, 0)[1]
    return k, ending or ("crashed" if status else "")
