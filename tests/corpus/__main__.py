# ruff: noqa: T201 - a printer
"""`python -m tests.corpus [-v] [WORD ...]`: what head finding says about every case whose name holds a word.

A table of outcomes per route with totals; with -v one line per case. Exit code 1 if an outcome is wrong.
"""

import sys
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from tests.corpus import ALL, OUTCOMES, Unavailable, outcome

_RIGHT = ("found right", "refused rightly")
_COLUMNS = (*OUTCOMES, "skipped", "not built")


def main(words: list[str]) -> int:
    """Print the table; returns the exit code."""
    verbose, words = "-v" in words, [w for w in words if w != "-v"]
    table: dict[str, Counter[str]] = {}
    for case in ALL:
        if words and not any(word in case.name for word in words):
            continue
        missing = [module for module in case.needs if find_spec(module) is None]
        if missing:
            result, seen = "skipped", f"no module {missing[0]}"
        else:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    result, seen = outcome(case, Path(folder))
                except Unavailable as error:
                    result, seen = "skipped", str(error)
                except Exception as error:  # noqa: BLE001 - of any exporter
                    result, seen = "not built", f"{type(error).__name__}: {error}"
        table.setdefault(case.route, Counter())[result] += 1
        if verbose or result not in (*_RIGHT, "skipped"):
            print(f"{result:16} {case.name}: {' '.join(seen.split())[:240]}", flush=True)
    total = sum(table.values(), Counter[str]())
    print("\n" + "".join([f"{'route':16}", *(f"{name:>17}" for name in (*_COLUMNS, "all"))]))
    for route, counts in [*table.items(), ("total", total)]:
        print("".join([f"{route:16}", *(f"{counts[name]:17}" for name in _COLUMNS), f"{counts.total():17}"]))
    return 0 if total.total() == sum(total[name] for name in (*_RIGHT, "skipped")) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
