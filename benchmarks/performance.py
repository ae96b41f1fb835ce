"""Run the benchmarks about speed and write their page.

python benchmarks/performance.py --models MODEL.onnx:CALIB [MODEL.onnx:CALIB ...]
python benchmarks/performance.py --only tilt,search     # sections that are not run keep what the page has
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from importlib.metadata import distributions
from pathlib import Path

from common import arguments

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results" / "performance.md"
PACKAGES = ("numpy", "scipy", "onnxruntime", "torch", "scikit-learn", "netcal", "probmetrics")

SECTIONS = {
    "goals": ("Goals", ["goals.py"]),
    "tilt": ("Tilt: rotations a second", ["tilt.py"]),
    "adaptive": ("Coarse to fine against the whole grid", ["adaptive.py", "--seeds", "3"]),
    "fits": ("Fits", ["fits.py"]),
    "million": ("N = 1,000,000 from a memory map", ["million.py"]),
    "engines": ("Engines", ["engines.py"]),
    "bare": ("Engines, over a network that costs next to nothing", ["engines.py", "--bare"]),
    "overhead": ("Small models", ["overhead.py"]),
    "startup": ("Start-up", ["startup.py"]),
    "scaling": ("Scaling", ["scaling.py", "--figure", str(PAGE.parent / "scaling.svg")]),
}


def machine() -> str:
    """One line about what this ran on."""
    model = "unknown processor"
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        model = (names or [model])[0]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}, Python {platform.python_version()}"


def versions() -> str:
    """Versions of what is installed."""
    installed = {(found.metadata["Name"] or "").lower(): found.version for found in distributions()}
    return ", ".join(f"{name} {installed.get(name, 'not installed')}" for name in PACKAGES)


def run(command: list[str]) -> str:
    """Output of one benchmark."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    # users keep bytecode; without it, every command compiles what it imports
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    words = [sys.executable, str(HERE / command[0]), *command[1:]]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout.strip()


def body(output: str) -> str:
    """Tables as they are, other lines as a code block."""
    blocks: list[tuple[str, list[str]]] = []
    kind = None
    for line in output.splitlines():
        now = "table" if line.startswith("|") else "text"
        if now != kind:
            blocks.append((now, []))
            kind = now
        blocks[-1][1].append(line)
    parts = []
    for now, lines in blocks:
        text = "\n".join(lines).strip("\n")
        if text.strip():
            parts.append(text if now == "table" else f"```text\n{text}\n```")
    return "\n\n".join(parts)


def main() -> None:
    """Write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="*", default=["models/digits/model.onnx:models/digits/calib.npz"])
    parser.add_argument("--options", default="", help="recipe of `adaptive.py` for image folders")
    parser.add_argument("--cifar10", help="folder for the rows of `goals.py` over a script by hand")
    parser.add_argument("--only", default=",".join(SECTIONS))
    a = parser.parse_args()
    old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    sections = []
    for key, (title, command) in SECTIONS.items():
        if key not in a.only.split(","):
            kept = re.search(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", old, re.DOTALL | re.MULTILINE)
            sections += [kept[0].strip()] if kept else []
            continue
        start, outputs, commands = time.perf_counter(), [], []
        if key == "adaptive":
            pairs = [model.rsplit(":", 1) for model in a.models]
            commands = [[*command, *pair, *(a.options.split() if Path(pair[1]).is_dir() else [])] for pair in pairs]
        elif key == "goals" and a.cifar10:
            commands = [[*command, "--cifar10", a.cifar10]]
        else:
            commands = [command]
        outputs = [body(run(c)) for c in commands]
        shown = " ".join("PATH" if word.startswith("/") else word for word in commands[0])
        text = f"## {title}\n\n`python benchmarks/{shown}`, commit {commit.strip()}.\n\n" + "\n\n".join(outputs)
        if key == "scaling":
            text += "\n\n![Seconds of one sparse search over size, one curve for each size that is varied](scaling.svg)"
        sections.append(text)
        print(f"{key}: {time.perf_counter() - start:.0f} s", flush=True)
        write(sections)
    write(sections)


def write(sections: list[str]) -> None:
    """Put the page together; what was changed and why is written by hand."""
    notes = (HERE / "performance_notes.md").read_text(encoding="utf-8").strip()
    head = (
        "# Performance\n\nWritten by `python benchmarks/performance.py`; what each script does is in its own text, and "
        f"in `benchmarks/README.md`.\n\n{machine()}; {versions()}.\n\nWhat counts are ratios to something that ran "
        "beside it in the same process."
    )
    PAGE.write_text("\n\n".join([head, *sections, notes]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
