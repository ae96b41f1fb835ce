"""What maps cost: time of fitting and of the complete search, memory, and latency of the written file.

    python benchmarks/map_cost.py search              # complete search per map against the bare products of its grid
    python benchmarks/map_cost.py search --maps aar --angle-step 10
    python benchmarks/map_cost.py latency MODEL.onnx  # written files against the input, batch 1 and 64

`search` runs on N = 12,500 samples, n = 2048, C = 1000 by default (see problems.py for the data). `latency` takes
any float32 model with a dynamic batch, fits each map on random inputs with random labels (what the map says does not
matter here, only its nodes), and times pairs of runs in turn: input model, written file, input model, ...
"""

from __future__ import annotations

import argparse
import functools
import resource
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
from common import arguments, timed
from problems import bare_products, make

import tna_onnx
from tna_onnx.calibration.settings import Settings
from tna_onnx.calibration.strategy import Strategy
from tna_onnx.engine.logits import HeadLogits
from tna_onnx.maps import MAPS
from tna_onnx.search.settings import SearchSettings

# What `latency` writes.
WRITTEN = {
    "none": Settings(search="sparse", map="none", ensemble_size=10),
    "ts folded": Settings(search="none"),
    "ts appended": Settings(search="none", fold=False),
    "ets": Settings(search="none", map="ets"),
    "irova": Settings(search="none", map="irova"),
    "aar": Settings(search="none", map="aar"),
}


def peak_gb() -> float:
    """Peak resident memory of this process so far, GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def search(a: argparse.Namespace) -> None:
    """Print times of the complete search and of one fit, per map."""
    table, weight, bias = make(a.samples, a.features, a.classes, lean=0.125, sharpness=0.15)
    settings = SearchSettings(angle_step=a.angle_step)
    size = f"N {a.samples}, n {a.features}, C {a.classes}, {len(settings.grid)} angles"
    print(f"{size}; peak with the data made {peak_gb():.2f} GB, features {table.features.nbytes / 2**30:.2f} GB")

    def cold_fit(name: str) -> None:
        chosen = MAPS[name]
        chosen.fit(HeadLogits(table, weight, bias).reduce(features=chosen.needs_features))

    bare = functools.partial(bare_products, table, weight, len(settings.grid))
    for name in a.maps.split(","):
        cold = timed(functools.partial(cold_fit, name))
        strategy = Strategy(lambda w: HeadLogits(table, w, bias), weight, "complete", name, settings)
        run = functools.partial(strategy.run, lambda *_: None)
        turns = [(timed(bare), timed(run)) for _ in range(a.repeats)]
        ratios = sorted(total / seconds for seconds, total in turns)
        seconds, total = np.median(turns, axis=0)
        print(
            f"{name:<6} complete {total:6.1f} s, bare products {seconds:5.1f} s, ratio {np.median(ratios):5.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f}); one cold fit {cold:5.1f} s; peak {peak_gb():.2f} GB",
            flush=True,
        )


def latency(a: argparse.Namespace) -> None:
    """Print the median of paired ratios per map and batch size."""
    rng = np.random.default_rng(0)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = a.threads
    source = onnxruntime.InferenceSession(a.model, options, providers=["CPUExecutionProvider"])
    info = source.get_inputs()[0]
    shape = [d if isinstance(d, int) else a.side for d in info.shape[1:]]
    classes = tna_onnx.inspect(a.model).require_head().classes
    with tempfile.TemporaryDirectory() as folder:
        x = rng.standard_normal((600, *shape)).astype(np.float32)
        logits = source.run(None, {info.name: x})[0]
        labels = np.argmax(logits / 2 + rng.gumbel(size=logits.shape), axis=1)  # overconfident by a temperature of 2
        labels[:classes] = np.arange(classes)
        np.savez(Path(folder) / "data.npz", **{info.name: x, "labels": labels})
        for label, settings in WRITTEN.items():
            path = Path(folder) / "written.onnx"
            tna_onnx.calibrate(a.model, Path(folder) / "data.npz", output=path, settings=settings, device="cpu")
            written = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            for batch in (1, 64):
                feed = {info.name: x[:batch]}
                pairs = []
                for _ in range(a.runs):
                    first, second = (timed(functools.partial(s.run, None, feed)) for s in (source, written))
                    pairs.append((first, second))
                ratio = np.array([second / first for first, second in pairs[5:]])
                base = np.median([first for first, _ in pairs[5:]])
                low, high = np.quantile(ratio, [0.25, 0.75])
                print(
                    f"{label:<12} batch {batch:<3} input {1e3 * base:8.3f} ms, written / input {np.median(ratio):.3f} "
                    f"(quartiles {low:.3f} to {high:.3f}, {len(ratio)} pairs)"
                )


def main() -> None:
    """Parse and run."""
    parser = arguments(__doc__)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("search")
    one.add_argument("--samples", type=int, default=12_500)
    one.add_argument("--features", type=int, default=2048)
    one.add_argument("--classes", type=int, default=1000)
    one.add_argument("--angle-step", type=float, default=2.0)
    one.add_argument("--repeats", type=int, default=1)
    one.add_argument("--maps", default="ts,ets,irova,aar")
    one.set_defaults(run=search)
    two = commands.add_parser("latency")
    two.add_argument("model")
    two.add_argument("--side", type=int, default=32, help="size put in place of dynamic dimensions")
    two.add_argument("--runs", type=int, default=205)
    two.add_argument("--threads", type=int, default=1)
    two.set_defaults(run=latency)
    a = parser.parse_args()
    a.run(a)


if __name__ == "__main__":
    main()
