"""What each decision costs: nodes, bytes, and the time of a run with all outputs beside one of the input model.

Runs of both files take turns in one process; what counts is the median of the paired ratios. The clock is the CPU time
of the process, with one thread: other work on the machine does not count.

    python benchmarks/guarded_cost.py MODEL CALIB --pairs 200
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from common import arguments, markdown

import tna_onnx

GUARDED: dict[str, dict[str, Any]] = {
    "`confidence`": {"add": ["confidence"]},
    "`accept`": {"add": ["accept"]},
    "`set`, lac": {"add": ["set"]},
    "`set`, aps": {"add": ["set"], "set_score": "aps"},
    "`set`, raps": {"add": ["set"], "set_score": "raps"},
    "`set`, aps, own temperature": {"add": ["set"], "set_score": "aps", "set_temperature": "auto"},
    "`ood`, energy": {"add": ["ood"], "ood_score": "energy"},
    "`ood`, mahalanobis": {"add": ["ood"]},
    "`ood`, residual": {"add": ["ood"], "ood_score": "residual"},
    "`confidence`, `accept`, `set`": {},
    "the same with dials": {"dials": True},
}

_WARM = 5  # pairs before the clock counts


def opened(path: Path) -> onnxruntime.InferenceSession:
    """Open a file on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    # of a graph with dials it would warn that they are no constants
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def cpu_time(run: Callable[[], object]) -> float:
    """Seconds of CPU of one call."""
    start = time.process_time()
    run()
    return time.process_time() - start


def ratio(source: Any, written: Any, feed: dict[str, Any], pairs: int) -> str:
    """Return the median of paired ratios and their quartiles."""
    ratios = []
    for _ in range(pairs + _WARM):
        first, second = (cpu_time(functools.partial(session.run, None, feed)) for session in (source, written))
        ratios.append(second / first)
    low, middle, high = np.quantile(ratios[_WARM:], [0.25, 0.5, 0.75])
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    """Write every file, and print a row for each."""
    parser = arguments(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("calib", type=Path, help="a .npz file with the model's input")
    parser.add_argument("--risk", type=float, default=10.0)
    parser.add_argument("--pairs", type=int, default=200)
    options = parser.parse_args()
    source = opened(options.model)
    name = source.get_inputs()[0].name
    with np.load(options.calib) as stored:
        x = stored[name]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for label, words in GUARDED.items():
            path = Path(folder) / "guarded.onnx"
            settings = {"risk": options.risk, "device": "cpu", **words}
            result = tna_onnx.guard(options.model, options.calib, output=path, **settings)
            written = opened(path)
            ratios = [ratio(source, written, {name: x[:batch]}, options.pairs) for batch in (1, 64)]
            rows.append([label, str(result.nodes), f"{result.bytes:,}", *ratios])
    print(markdown(["added", "nodes", "bytes", "time, batch 1", "time, batch 64"], rows))


if __name__ == "__main__":
    main()
