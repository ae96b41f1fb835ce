"""SIGKILL, SIGINT and SIGTERM at random moments of real runs, and what is there afterwards.

    python -m tests.faults.kills --kills 200 [--seed 0]
    python -m tests.faults.kills --kills 50 --signal SIGINT --signal SIGTERM

A command runs in a process that was forked when everything was loaded, so each kill falls into the work and none into
the start-up. Moments are drawn evenly over the time that a whole run takes. After each kill every file must be the old
one or the new one, and the next run must succeed and leave what a run leaves that nobody killed, byte for byte. A run
that is interrupted ends with 128 and the number of the signal, or with 0 where it was done.
"""

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime  # noqa: F401 - loaded before the fork

import tna_onnx.api.calibrate
import tna_onnx.api.features
import tna_onnx.api.guard
import tna_onnx.cli.show
import tna_onnx.render.html.pages
import tna_onnx.render.terminal  # noqa: F401 - loaded before the fork
from tests.conftest import ROOT, Demo
from tests.support import PLAIN, words_of
from tna_onnx.cli import main as command_line
from tna_onnx.extraction.store import find_stores, read_stored

Files = dict[str, str]
"""Name -> digest of what it holds."""

POINTS = 4  # parts of a run, of equal length


@dataclass(frozen=True)
class Run:
    """A command that replaces an older result.

    Attributes:
        prepare: makes the inputs in a folder.
        words: of the command, for an older (False) and for the new result (True).
        results: what must be whole at any moment; those that a command leaves under way are not.
    """

    prepare: Callable[[Path], None]
    words: Callable[[Path, bool], list[str]]
    results: Callable[[Path], Files]


def start(words: list[str], log: Path) -> int:
    """Fork, and run a command; returns its process."""
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.argv = ["tna-onnx", *words]
        command_line()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        os._exit(code)


def finish(words: list[str], log: Path) -> float:
    """Run a command to its end, which must be a good one; returns the seconds that it took."""
    begin = time.monotonic()
    status = os.waitpid(start(words, log), 0)[1]
    assert status == 0, (words, status, log.read_text())
    return time.monotonic() - begin


def killed(run: Run, folder: Path, kills: int, seed: int, number: int = signal.SIGKILL) -> Counter[tuple[int, str]]:
    """Send a command a signal at random moments; returns how often which state was there, by the part of the run.

    States are `old`, `new`, `mixed` (some results old, some new, each of them whole), or what is wrong.
    """
    rng = random.Random(seed)
    inputs, out, log = folder / "in", folder / "out", folder / "log"
    inputs.mkdir()
    run.prepare(inputs)
    older = _clean(run, out, log, inputs, new=False)
    before = shutil.copytree(out, folder / "before")
    newer = _clean(run, out, log, inputs, new=True)
    expected = _listing(out)
    seconds = min(_timed(run, before, out, log) for _ in range(3))
    counts: Counter[tuple[int, str]] = Counter()
    while counts.total() < kills:
        _reset(out, before)
        delay = rng.uniform(0, seconds)
        process = start(run.words(out, True), log)
        time.sleep(delay)
        os.kill(process, number)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if number == signal.SIGKILL and code >= 0:
            continue  # it was faster this time
        state = _state(run.results(out), older, newer)
        # as a shell has it: before the program has its handlers, a signal ends it
        if number != signal.SIGKILL and (128 - code if code < 0 else code) not in (0, 128 + number):
            state = f"exit code {code}: {log.read_text()[-200:]}"
        left = {name for name in _listing(out) if name.endswith(".tmp")}
        if number != signal.SIGKILL and left and "cache" not in str(left):
            state = f"left over: {sorted(left)}"
        finish(run.words(out, True), log)
        if run.results(out) != newer:
            state = "wrong after the next run"
        elif _listing(out) != expected:
            state = f"left over: {sorted(_listing(out) ^ expected)}"
        counts[min(int(POINTS * delay / seconds), POINTS - 1), state] += 1
    return counts


def _clean(run: Run, out: Path, log: Path, inputs: Path, *, new: bool) -> Files:
    if not new:
        shutil.copytree(inputs, out)
    finish(run.words(out, new), log)
    return run.results(out)


def _timed(run: Run, before: Path, out: Path, log: Path) -> float:
    _reset(out, before)
    return finish(run.words(out, True), log)


def _reset(out: Path, before: Path) -> None:
    shutil.rmtree(out)
    shutil.copytree(before, out)


def _listing(out: Path) -> set[str]:
    return {str(path.relative_to(out)) for path in out.rglob("*")}


def _state(found: Files, older: Files, newer: Files) -> str:
    states = set()
    for name in {*older, *newer}:
        if found.get(name) == older.get(name) == newer.get(name):
            continue
        if found.get(name) == older.get(name):
            states.add("old")
        elif found.get(name) == newer.get(name):
            states.add("new")
        else:
            return f"{name} is neither"
    return states.pop() if len(states) == 1 else "mixed"


# --- calibrate


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _undated(content: bytes) -> bytes:
    """Leave out when a result was made and how long it took, and the numbers to download, which say both."""
    content = re.sub(rb"<dt>Date</dt><dd>[^<]*</dd>", b"", content)
    content = re.sub(rb'"(date|seconds)": [^\n]*', b"", content)
    return re.sub(rb"data:application/gzip;base64,[^\"]*", b"", content)


def _external(folder: Path) -> None:
    model = onnx.load(Demo.model)
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)


def _embedded(folder: Path) -> None:
    shutil.copy(Demo.model, folder / "model.onnx")


def _calibrate(out: Path, new: bool) -> list[str]:
    files = ["-o", out / "o.onnx", "--json", out / "r.json", "--report", out / "r.html"]
    settings = PLAIN if new else {**PLAIN, "map": "ets"}
    return [str(w) for w in ("calibrate", out / "model.onnx", "--calib", Demo.calib, *files, *words_of(settings), "-q")]


def _calibrated(out: Path) -> Files:
    """The model as it opens, its data included, and the bytes of JSON and page."""
    model = onnx.load(out / "o.onnx")  # raises if its data are not there, or too short
    onnx.checker.check_model(model)
    for tensor in model.graph.initializer:
        tensor.ClearField("external_data")  # the place; the data are inside now
    others = {name: _digest(_undated((out / name).read_bytes())) for name in ("r.json", "r.html")}
    return {"o.onnx": _digest(model.SerializeToString(deterministic=True)), **others}


# --- features


def _many(folder: Path) -> None:
    with np.load(Demo.calib) as calib:
        arrays = {name: np.concatenate([calib[name]] * 12) for name in calib.files}
    _embedded(folder)
    np.savez(folder / "data.npz", **arrays)


def _features(out: Path, new: bool) -> list[str]:
    if not new:
        return ["--version"]
    given = ["features", out / "model.onnx", "--data", out / "data.npz", "--cache", out / "cache", "--batch-size", "64"]
    return [str(word) for word in [*given, "--device", "cpu", "-q"]]


def _stored(out: Path) -> Files:
    """The rows of the store if it is finished; nothing while it is under way."""
    stores = find_stores(out / "cache")
    if not stores or not (stores[0] / "manifest.json").exists():
        return {}
    manifest = json.loads((stores[0] / "manifest.json").read_text())
    checksums = stores[0] / "checksums.txt"
    done = len(checksums.read_text().split()) if checksums.exists() else 0
    if done * manifest["chunk"] < manifest["samples"]:
        return {}
    stored = read_stored(out / "cache")
    rows = {name: _digest(np.ascontiguousarray(array).tobytes()) for name, array in stored.arrays.items()}
    return {**rows, "labels": _digest(stored.labels.tobytes())}


# --- guard, and calibrate with everything that it can write


def _guard(out: Path, new: bool) -> list[str]:
    files = ["-o", out / "o.onnx", "--json", out / "r.json"]
    settings = ["--coverage", "90" if new else "80", "--device", "cpu", "-q"]
    return [str(word) for word in ("guard", out / "model.onnx", "--calib", Demo.calib, *files, *settings)]


def _guarded(out: Path) -> Files:
    onnx.checker.check_model(onnx.load(out / "o.onnx"))
    return {name: _digest(_undated((out / name).read_bytes())) for name in ("o.onnx", "r.json")}


def _cached(out: Path, new: bool) -> list[str]:
    return [*_calibrate(out, new), "--cache", str(out / "cache")]


RUNS = {
    "calibrate": Run(_embedded, _calibrate, _calibrated),
    "calibrate, external data": Run(_external, _calibrate, _calibrated),
    "calibrate --cache --report": Run(_embedded, _cached, _calibrated),
    "guard": Run(_embedded, _guard, _guarded),
    "features, many chunks": Run(_many, _features, _stored),
}


def kill_table(name: str, counts: Counter[tuple[int, str]]) -> str:
    """Return one line for each part of the run."""
    lines = []
    for point in range(POINTS):
        states = Counter({state: n for (at, state), n in counts.items() if at == point})
        known = [states.pop(state, 0) for state in ("old", "new", "mixed")]
        rest = ", ".join(f"{n} {state}" for state, n in states.items()) or "0"
        place = f"{100 * point // POINTS} to {100 * (point + 1) // POINTS} %"
        lines.append(
            f"| {name} | {place} | {sum(known) + states.total()} | {known[0]} | {known[1]} | {known[2]} | {rest} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="in total")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--signal", choices=("SIGKILL", "SIGINT", "SIGTERM"), action="append")
    options = parser.parse_args()
    signals = options.signal or ["SIGKILL"]
    print("| command | part of the run | kills | old | new | each file whole, old or new | anything else |")  # noqa: T201
    print("|---|---|---|---|---|---|---|", flush=True)  # noqa: T201
    bad = 0
    pairs = [(name, each) for name in RUNS for each in signals]
    for k, (name, each) in enumerate(pairs):
        share = options.kills // len(pairs) + (k < options.kills % len(pairs))
        with tempfile.TemporaryDirectory() as folder:
            counts = killed(RUNS[name], Path(folder), share, options.seed, getattr(signal, each))
        print(kill_table(f"{name}, {each}", counts), flush=True)  # noqa: T201
        bad += sum(n for (_, state), n in counts.items() if state not in ("old", "new", "mixed"))
    sys.exit(bad > 0)


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
