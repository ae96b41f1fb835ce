"""Start-up: CPU time of the command line before any work, over that of a bare `python -c pass`.

Every command is run in turn, a round after the other, so that what else the machine does falls on all alike. CPU time
is user + system of the child process; of each command the median of the rounds counts, less that of the bare
interpreter. Modules are what `sys.modules` holds at the end, of `python -c pass` less.

    python benchmarks/startup.py            # 11 rounds
    python benchmarks/startup.py --rounds 21
"""

from __future__ import annotations

import platform
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from common import arguments, markdown, versions

VERBS = ("calibrate", "compare", "evaluate", "features", "inspect", "verify")
BARE = [sys.executable, "-c", "pass"]
MODEL = str(Path(__file__).parents[1] / "models/digits/model.onnx")


def commands() -> dict[str, list[str]]:
    """What is timed, by the name it has in the table; verbs that this version lacks are left out."""
    run = [sys.executable, "-m", "tna_onnx"]
    listed = subprocess.run([*run, "--help"], check=True, capture_output=True, text=True).stdout.split()
    return {
        "python -c pass": BARE,
        "import tna_onnx": [sys.executable, "-c", "import tna_onnx"],
        "tna-onnx --version": [*run, "--version"],
        "tna-onnx --help": [*run, "--help"],
        **{f"tna-onnx {verb} --help": [*run, verb, "--help"] for verb in VERBS if verb in listed},
        "tna-onnx inspect DIGITS": [*run, "inspect", MODEL],
        "import numpy": [sys.executable, "-c", "import numpy"],
        "import numpy, onnx, onnxruntime": [sys.executable, "-c", "import numpy, onnx, onnxruntime"],
        "tna_onnx.inspect": [sys.executable, "-c", "import tna_onnx; tna_onnx.inspect"],
        "tna_onnx.evaluate": [sys.executable, "-c", "import tna_onnx; tna_onnx.evaluate"],
        "tna_onnx.calibrate": [sys.executable, "-c", "import tna_onnx; tna_onnx.calibrate"],
    }


def cpu_seconds(command: list[str]) -> float:
    """User and system time of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    a = parser.parse_args()
    timed = commands()
    for command in timed.values():  # compile and cache what is not yet
        cpu_seconds(command)
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(a.rounds):
        for name, command in timed.items():
            seconds[name].append(cpu_seconds(command))
    bare = statistics.median(seconds["python -c pass"])
    print(f"Python {platform.python_version()}, {versions('click')}, {a.rounds} rounds; CPU milliseconds\n")
    rows = []
    for name, values in seconds.items():
        middle = statistics.median(values)
        span = f"{1000 * min(values):.0f} to {1000 * max(values):.0f}"
        rows.append([f"`{name}`", f"{1000 * middle:.0f}", span, f"{1000 * (middle - bare):.0f}"])
    print(markdown(["command", "median", "range", "over bare Python"], rows))


if __name__ == "__main__":
    main()
