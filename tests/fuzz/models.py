"""Damaged models through load, head finding, rewriting and the runtime.

    python -m tests.fuzz.models --cases 20000 [--seed 0] [--only CASE]

What may be raised: `TnaError`, with a text. What is written has the source's own weight as the new one: it must pass
the check of `calibrate`, and compute what the source does. A child process does the work, so that a crash or an endless
loop is counted and the next case goes on.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import onnxruntime

from tests.fuzz.mutations import mutated
from tests.graph.samples import CASES, FEATURES
from tna_onnx.calibration.written import check_file
from tna_onnx.errors import TnaError
from tna_onnx.graph.head import choose_head, find_heads
from tna_onnx.graph.load import load_model
from tna_onnx.graph.rewrite import rewrite
from tna_onnx.graph.save import pending

OUTCOMES = ("refused cleanly", "done and verified", "traceback", "blocked", "crashed", "silently wrong")
_SECONDS = 20.0  # for a case that takes a tenth of a second
_NAMES = tuple(sorted(CASES))


def data_of(case: int, seed: int) -> bytes:
    """Return the file of one case."""
    random = Random(f"{seed} {case}")
    return mutated(CASES[random.choice(_NAMES)]().proto, random)


def outcome_of(data: bytes, folder: Path) -> str:
    """Run one case; anything but a `TnaError` goes on up."""
    path = folder / "model.onnx"
    path.write_bytes(data)
    try:
        model = load_model(path)
        find_heads(model)
        head = choose_head(model)
        rewritten = rewrite(model, head, np.array(head.weight), metadata={"fuzz": "1"})
        with pending(model, rewritten.proto, folder / "new.onnx") as new:
            check_file(model, rewritten, new)
    except TnaError as error:
        if not str(error):
            return "silently wrong"
        return "refused cleanly"
    return "done and verified" if _same_results(path, folder / "new.onnx") else "silently wrong"


def _same_results(old: Path, new: Path) -> bool:
    """Whether a file computes what its source does, as far as ONNX Runtime can run that."""
    try:
        expected = _run(old)
    except Exception:  # noqa: BLE001 - a damaged source, which calibrate would refuse
        return True
    return all(
        np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) for a, b in zip(expected, _run(new), strict=True)
    )


def _run(path: Path) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    dtypes = {"tensor(float16)": np.float16, "tensor(double)": np.float64}
    feeds = {i.name: np.ones((4, FEATURES), dtypes.get(i.type, np.float32)) for i in session.get_inputs()}
    return [np.asarray(value) for value in session.run(None, feeds)]


def child(cases: range, seed: int, out: int) -> None:
    """Run cases and report each by a line."""
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome = outcome_of(data_of(case, seed), Path(folder))
            except Exception:  # noqa: BLE001 - that is what is looked for
                outcome = "traceback"
                sys.stderr.write(f"case {case}:\n{traceback.format_exc()}\n")
        if outcome == "silently wrong":
            sys.stderr.write(f"case {case}: {outcome}\n")
        os.write(out, f"{OUTCOMES.index(outcome)}\n".encode())


def campaign(cases: range, seed: int) -> Counter[str]:
    """Run cases in child processes, one after another, each going on behind the case that ended the last."""
    counts: Counter[str] = Counter()
    start = cases.start
    while start < cases.stop:
        end, write = os.pipe()
        process = os.fork()
        if not process:
            os.close(end)
            child(range(start, cases.stop), seed, write)
            os._exit(0)
        os.close(write)
        start, ending = _follow(end, process, start, cases.stop, counts)
        if ending:
            counts[ending] += 1
            sys.stderr.write(f"case {start}: {ending}\n")
            start += 1
    return counts


def _follow(end: int, process: int, start: int, stop: int, counts: Counter[str]) -> tuple[int, str]:
    """Count what a child reports; returns the case that it did not get past, and why."""
    ending = "crashed"
    with os.fdopen(end, "rb", buffering=0) as stream:
        while start < stop:
            if not select.select([stream], [], [], _SECONDS)[0]:
                os.kill(process, signal.SIGKILL)
                ending = "blocked"
                break
            told = stream.read(2)
            if not told:
                break
            counts[OUTCOMES[int(told)]] += 1
            start += 1
    os.waitpid(process, 0)
    return start, "" if start == stop else ending


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run this case alone, in this process")
    options = parser.parse_args()
    if options.only is not None:
        with tempfile.TemporaryDirectory() as folder:
            sys.stdout.write(f"{outcome_of(data_of(options.only, options.seed), Path(folder))}\n")
        return
    counts = campaign(range(options.cases), options.seed)
    sys.stdout.write(f"tried {options.cases:,}\n" + "".join(f"{name} {counts[name]:,}\n" for name in OUTCOMES))
    sys.exit(any(counts[name] for name in OUTCOMES[2:]))


if __name__ == "__main__":
    main()
