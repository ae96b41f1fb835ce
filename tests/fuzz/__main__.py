"""Every harness for some time, or some cases of each.

    python -m tests.fuzz --seconds 20            # each harness for 20 seconds, with a seed that is printed
    python -m tests.fuzz --cases 5000 --seed 7 --harness models
    python -m tests.fuzz --harness stores --seed 7 --only 123

The exit code is 1 if a case ended in another way than refused or done.
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.fuzz import configs, models, stores
from tests.fuzz.children import OUTCOMES, Case, campaign
from tests.fuzz.data import FAMILIES, Family

HARNESSES: dict[str, Case] = {"models": models.case, "stores": stores.case, "configs": configs.case}


def reader(name: str, family: Family) -> Case:
    """Return the cases of a family of data files."""

    def case(k: int, seed: int, folder: Path) -> None:
        rng = random.Random(f"{name} {seed} {k}")
        random.seed(rng.random())
        target, data = family.write(folder)
        target.write_bytes(family.mutate(target.read_bytes(), rng))
        family.read(data)

    return case


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="of each harness")
    parser.add_argument("--seconds", type=float, help="for each harness; 20 unless --cases is given")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    parser.add_argument("--harness", choices=[*HARNESSES, "data"], action="append")
    parser.add_argument("--only", type=int, help="run this case alone, in this process")
    options = parser.parse_args()
    cases = {}
    for name in options.harness or [*HARNESSES, "data"]:
        # the families of data share what one harness has
        own = {name: HARNESSES[name]} if name in HARNESSES else {n: reader(n, f) for n, f in FAMILIES.items()}
        cases |= {n: (case, len(own)) for n, case in own.items()}
    if options.only is not None:
        for case, _ in cases.values():
            with tempfile.TemporaryDirectory() as folder:
                case(options.only, options.seed, Path(folder))
        return
    seconds = options.seconds or (20.0 if options.cases == sys.maxsize else 1e9)
    sys.stdout.write(f"seed {options.seed}\n")
    total: Counter[str] = Counter()
    for name, (case, parts) in cases.items():
        each = -(-options.cases // parts)
        counts = campaign(name, case, seed=options.seed, cases=each, seconds=seconds / parts)
        sys.stdout.write(line(name, counts))
        sys.stdout.flush()
        total += counts
    sys.stdout.write(line("all", total))
    sys.exit(any(total[name] for name in OUTCOMES[2:]))


def line(name: str, counts: Counter[str]) -> str:
    """Return the counts of a harness in one line."""
    return f"{name:16} {counts.total():7,} tried, " + ", ".join(f"{counts[o]:,} {o}" for o in OUTCOMES) + "\n"


if __name__ == "__main__":
    main()
