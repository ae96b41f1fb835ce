"""What each decision costs: nodes, bytes, and the time of a run with all outputs beside one of the input model.

Runs of both files take turns in one process; what counts is the median of the paired ratios, with their quartiles. The
clock is the CPU time of the process, with one thread: other work on the machine does not count.

    python benchmarks/guarded_cost.py                      # the digits demo, and a random forest on a table
    python benchmarks/guarded_cost.py --images FOLDER --mean 0.485 0.456 0.406 --std 0.229 0.224 0.225
                                                           # and the networks FOLDER/*.onnx on the images FOLDER/calib
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from common import arguments, markdown
from guarantees_data import table_model
from numpy.typing import NDArray

import tna_onnx
from tna_onnx.data import Recipe
from tna_onnx.data.options import Data
from tna_onnx.errors import UnsupportedModel
from tna_onnx.extraction.sessions import input_specs, open_model
from tna_onnx.graph.load import load_model
from tna_onnx.runtime import parse_device

DIGITS = Path(__file__).resolve().parent.parent / "models/digits"

GUARDED: dict[str, dict[str, Any]] = {
    "`confidence`": {"add": ["confidence"]},
    "`accept`": {"add": ["accept"]},
    "`set`, lac": {"add": ["set"]},
    "`set`, lac, per class": {"add": ["set"], "per_class": True, "coverage": 80},
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
_LEAST = 15  # pairs, however slow the model is
_SAMPLES = 1000  # that thresholds come from, of image folders


@dataclass(frozen=True, eq=False)
class Case:
    """A model, its samples as arrays with labels, and words that `guard` needs for it."""

    name: str
    model: Path
    samples: dict[str, NDArray[Any]]
    words: dict[str, Any] = field(default_factory=dict)


def cases(folder: Path, images: Path | None, recipe: Recipe) -> Iterator[Case]:
    """Yield the models that are measured."""
    with np.load(DIGITS / "calib.npz") as stored:
        yield Case("digits: a small CNN, n = 256, C = 10", DIGITS / "model.onnx", dict(stored))
    model, data = table_model(folder)
    with np.load(data) as stored:
        words = {"output_name": "probabilities", "output_kind": "probabilities"}
        yield Case("table: a forest of 50 trees, C = 10", model, dict(stored), words)
    if images is None:
        return
    for path in sorted(images.glob("*.onnx")):
        yield Case(f"CIFAR-10: {path.stem}", path, image_arrays(path, images / "calib", recipe))


def image_arrays(model: Path, folder: Path, recipe: Recipe) -> dict[str, NDArray[Any]]:
    """Return some images of a folder as the model takes them, and their labels."""
    loaded = load_model(model)
    inputs = input_specs(open_model(loaded, parse_device("cpu")))
    source = Data(folder, preprocessing=recipe).open(inputs, len([*folder.iterdir()]), None)
    rows = np.random.default_rng(0).permutation(len(source))[:_SAMPLES]
    batches = [*source.batches(64, rows)]
    arrays = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    return {**arrays, "labels": source.labels[rows]}


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


def ratio(source: Any, written: Any, feed: dict[str, Any], pairs: int, seconds: float) -> str:
    """Return the median of paired ratios and their quartiles."""
    ratios: list[float] = []
    start = time.perf_counter()
    while len(ratios) < pairs + _WARM:
        if len(ratios) >= _LEAST + _WARM and time.perf_counter() - start > seconds:
            break
        first, second = (cpu_time(functools.partial(session.run, None, feed)) for session in (source, written))
        ratios.append(second / first)
    low, middle, high = np.quantile(ratios[_WARM:], [0.25, 0.5, 0.75])
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def rows(case: Case, folder: Path, pairs: int, seconds: float, risk: float) -> Iterator[list[str]]:
    """Write every file of a model, and yield a row for each."""
    source = opened(case.model)
    feeds = {name: values for name, values in case.samples.items() if name != "labels"}
    for label, words in GUARDED.items():
        path = folder / "guarded.onnx"
        settings = {"risk": risk, "device": "cpu", **case.words, **words}
        try:
            result = tna_onnx.guard(case.model, case.samples, output=path, **settings)
        except UnsupportedModel:
            yield [label, "no", "no", "no", "no"]
            continue
        written = opened(path)
        ratios = []
        for batch in (1, 64):
            feed = {name: values[:batch] for name, values in feeds.items()}
            ratios.append(ratio(source, written, feed, pairs, seconds))
        yield [label, str(result.nodes), f"{result.bytes:,}", *ratios]


def main() -> None:
    """Print a table for each model."""
    parser = arguments(__doc__)
    parser.add_argument("--images", type=Path, help="folder of networks and of the folder `calib` of images")
    parser.add_argument("--mean", type=float, nargs=3, default=(0.0, 0.0, 0.0))
    parser.add_argument("--std", type=float, nargs=3, default=(1.0, 1.0, 1.0))
    parser.add_argument("--risk", type=float, default=15.0)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0, help="for the pairs of a file and a batch size")
    options = parser.parse_args()
    recipe = Recipe(mean=tuple(options.mean), std=tuple(options.std))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for case in cases(folder, options.images, recipe):
            found = [*rows(case, folder, options.pairs, options.seconds, options.risk)]
            print(f"\n{case.name}: {case.model.stat().st_size:,} bytes\n", flush=True)
            print(markdown(["added", "nodes", "bytes", "time, batch 1", "time, batch 64"], found), flush=True)


if __name__ == "__main__":
    main()
