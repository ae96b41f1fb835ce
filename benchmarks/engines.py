"""CPU seconds of `features` on each engine, beside a loop of twenty lines over ONNX Runtime that keeps the same arrays.

    python benchmarks/engines.py [--samples 5000] [--turns 3] [--engines plain,local,processes:1,processes:2]

The model is a small convolutional network with random weights: 3 x 32 x 32 inputs, 2,048 features, 100 classes. The
samples are read from an .npz file. With `--bare` the network costs next to nothing: what is left is what engines add.
CPU seconds are those of all processes of a run: on a shared machine they vary less than wall seconds, which are printed
beside them. Two sizes tell what a run costs once (interpreter, imports, checks) from what a sample costs. The digests
of the stores are printed: one for all engines.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import psutil
from common import markdown
from onnx import helper, numpy_helper

PLAIN = """
import sys
import numpy as np
import onnx, onnxruntime
model, data, out = sys.argv[1:]
proto = onnx.load(model)
proto.graph.output.extend([onnx.helper.make_empty_tensor_value_info("features")])
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
with np.load(data) as stored:
    x, labels = stored["x"], stored["labels"]
features, logits = np.empty((len(x), 2048), np.float32), np.empty((len(x), 100), np.float32)
for start in range(0, len(x), 64):
    part = slice(start, start + 64)
    features[part], logits[part] = session.run(["features", "logits"], {"x": x[part]})
np.savez(out, features=features, logits=logits, labels=labels)
"""


HEAD = ["engine", "CPU s", "wall s", "once, CPU s", "a sample, CPU ms", "over plain", "peak, driver + worker, MB"]


def network(*, bare: bool) -> onnx.ModelProto:
    """Four convolutions of 80 million products in all, a pool, a hidden layer of 2,048 and a head of 100.

    Without the convolutions the hidden layer reads the means of the channels.
    """
    draw = np.random.default_rng(0)
    tensors = []

    def tensor(name: str, *shape: int) -> str:
        values = draw.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        tensors.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    nodes, last = [], "x"
    layers = [] if bare else [(3, 64, 1), (64, 128, 2), (128, 256, 2), (256, 256, 1)]
    for k, (channels, wider, stride) in enumerate(layers):
        weight = tensor(f"w{k}", wider, channels, 3, 3)
        nodes.append(helper.make_node("Conv", [last, weight], [f"c{k}"], pads=[1] * 4, strides=[stride] * 2))
        nodes.append(helper.make_node("Relu", [f"c{k}"], [f"r{k}"]))
        last = f"r{k}"
    nodes += [
        helper.make_node("GlobalAveragePool", [last], ["pool"]),
        helper.make_node("Flatten", ["pool"], ["flat"]),
        helper.make_node("Gemm", ["flat", tensor("hidden", 2048, 3 if bare else 256)], ["z"], transB=1),
        helper.make_node("Relu", ["z"], ["features"]),
        helper.make_node("Gemm", ["features", tensor("weight", 100, 2048)], ["logits"], name="head", transB=1),
    ]
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 3, 32, 32])
    made = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["N", 100])
    graph = helper.make_graph(nodes, "small", [given], [made], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Usage:
    """CPU seconds and memory of a process and all that it starts, looked at ten times a second."""

    def __init__(self, pid: int) -> None:
        self.seconds: dict[int, float] = {}
        self.largest: dict[int, int] = {}
        self._process = psutil.Process(pid)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            # a process may have ended since it was listed
            with contextlib.suppress(psutil.Error):
                for each in [self._process, *self._process.children(recursive=True)]:
                    times = each.cpu_times()
                    self.seconds[each.pid] = times.user + times.system
                    self.largest[each.pid] = max(self.largest.get(each.pid, 0), each.memory_info().rss)

    def close(self) -> None:
        self._done.set()
        self._thread.join()


def timed(words: list[str]) -> tuple[float, float, int, int]:
    """Return (CPU seconds, wall seconds, peak bytes of the driver, of the largest other process)."""
    begun = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    usage = Usage(process.pid)
    code = process.wait()
    usage.close()
    if code:
        raise SystemExit(f"{words}: exit code {code}")
    driver = usage.largest.pop(process.pid, 0)
    wall = time.perf_counter() - begun
    return sum(usage.seconds.values()), wall, driver, max(usage.largest.values(), default=0)


def store_digest(cache: Path) -> str:
    """SHA-256 of all files of a store."""
    digest = hashlib.sha256()
    for path in sorted(cache.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def run(engine: str, folder: Path, samples: int, stores: dict[int, set[str]]) -> tuple[float, float, int, int]:
    """Run one engine, or the loop, over the first so many samples; `stores` takes the digest of what was written."""
    model, data = str(folder / "model.onnx"), str(folder / f"{samples}.npz")
    if engine == "plain":
        return timed([sys.executable, "-c", PLAIN, model, data, str(folder / "plain.npz")])
    cache = folder / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    words = ["features", model, "--data", data, "--cache", str(cache), "--device", "cpu", "-q", "--engine", engine]
    found = timed([sys.executable, "-m", "tna_onnx", *words])
    stores.setdefault(samples, set()).add(store_digest(cache))
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=5_000)
    parser.add_argument("--bare", action="store_true", help="a network that costs next to nothing")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--engines", default="plain,local,processes:1,processes:2")
    options = parser.parse_args()
    sizes = (options.samples // 10, options.samples)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx.save(network(bare=options.bare), folder / "model.onnx")
        draw = np.random.default_rng(1)
        for size in sizes:
            x = draw.standard_normal((size, 3, 32, 32)).astype(np.float32)
            np.savez(folder / f"{size}.npz", x=x, labels=draw.integers(0, 100, size))
        table: dict[tuple[str, int], list[tuple[float, float, int, int]]] = {}
        stores: dict[int, set[str]] = {}
        # in turns, so that a busy hour of the machine meets all of them
        for turn in range(options.turns):
            for engine in options.engines.split(","):
                for size in sizes:
                    found = run(engine, folder, size, stores)
                    table.setdefault((engine, size), []).append(found)
                    cpu, wall, driver, worker = found
                    memory = f"{driver >> 20} + {worker >> 20} MB"
                    words = f"turn {turn} {engine} {size}: {cpu:.1f} s CPU, {wall:.1f} s, {memory}"
                    print(words, file=sys.stderr, flush=True)
    rows = []
    base = 0.0
    for engine in options.engines.split(","):
        few, many = (statistics.median(each[0] for each in table[engine, size]) for size in sizes)
        each = (many - few) / (sizes[1] - sizes[0])
        base = base or each
        once, more = few - each * sizes[0], 100 * (each / base - 1)
        driver = max(found[2] for found in table[engine, sizes[1]]) >> 20
        worker = max(found[3] for found in table[engine, sizes[1]]) >> 20
        wall = statistics.median(found[1] for found in table[engine, sizes[1]])
        figures = [f"{many:.1f}", f"{wall:.1f}", f"{once:.1f}", f"{1000 * each:.3f}", f"{more:+.1f} %"]
        rows.append([engine, *figures, f"{driver} + {worker}"])
    print(f"{sizes[1]:,} samples, {options.turns} turns in alternation; median CPU seconds of all processes.\n")
    print(markdown(HEAD, rows))
    for size, digests in stores.items():
        print(f"\n{size:,} samples: {len(digests)} different store(s) in {options.turns} turns: {', '.join(digests)}")


if __name__ == "__main__":
    main()
